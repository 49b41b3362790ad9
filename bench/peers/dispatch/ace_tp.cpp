// ACE's ACE_TP_Reactor: the reference implementation of Leader/Followers, over select(2).
//   one    handle_input receives one datagram, as ACE's examples do
//   drain  handle_input reads until the socket is empty, at most 64 datagrams
#include <ace/Event_Handler.h>
#include <ace/Reactor.h>
#include <ace/TP_Reactor.h>

#include <thread>

#include "subject.hpp"

struct Channel : ACE_Event_Handler {
    int socket;
    bool drains;

    ACE_HANDLE get_handle() const override { return socket; }

    int handle_input(ACE_HANDLE) override {
        char buffer[2048];
        for (int count = 0; count < (drains ? 64 : 1); count++) {
            if (recv(socket, buffer, sizeof buffer, 0) < 0) break;
            subject::handle(buffer);
        }
        return 0;
    }
};

int main(int argc, char **argv) {
    auto arguments = subject::parse(argc, argv);
    ACE_TP_Reactor implementation;
    ACE_Reactor reactor(&implementation);
    auto sockets = subject::open_sockets(arguments.sockets);
    for (int socket : sockets) {
        auto *channel = new Channel;
        channel->socket = socket;
        channel->drains = arguments.drains;
        if (reactor.register_handler(channel, ACE_Event_Handler::READ_MASK)) exit(3);
    }
    for (int thread = 0; thread < arguments.threads; thread++)
        std::thread([&reactor, thread] {
            subject::own = &subject::counts[thread];
            reactor.run_reactor_event_loop();
        }).detach();
    subject::print_ports(sockets);
    subject::report(arguments);
}
