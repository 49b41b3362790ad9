// Boost.Asio: one io_context that all threads run.
//   one    an asynchronous receive for each datagram, as tutorials write it
//   drain  waits for readiness and reads until the socket is empty, at most 64 datagrams
#include <boost/asio.hpp>

#include <array>
#include <memory>
#include <thread>

#include "subject.hpp"

using boost::asio::ip::udp;

struct Channel {
    udp::socket socket;
    std::array<char, 2048> buffer;

    void receive() {
        socket.async_receive(boost::asio::buffer(buffer), [this](boost::system::error_code error, size_t) {
            if (error) return;
            subject::handle(buffer.data());
            receive();
        });
    }

    void drain() {
        socket.async_wait(udp::socket::wait_read, [this](boost::system::error_code error) {
            if (error) return;
            for (int count = 0; count < 64; count++) {
                socket.receive(boost::asio::buffer(buffer), 0, error);
                if (error) break;
                subject::handle(buffer.data());
            }
            drain();
        });
    }
};

int main(int argc, char **argv) {
    auto arguments = subject::parse(argc, argv);
    boost::asio::io_context context(arguments.threads);
    auto sockets = subject::open_sockets(arguments.sockets);
    std::vector<std::unique_ptr<Channel>> channels;
    for (int socket : sockets) {
        channels.push_back(std::make_unique<Channel>(Channel{udp::socket(context, udp::v4(), socket), {}}));
        channels.back()->socket.non_blocking(true);
        arguments.drains ? channels.back()->drain() : channels.back()->receive();
    }
    for (int thread = 0; thread < arguments.threads; thread++)
        std::thread([&context, thread] {
            subject::own = &subject::counts[thread];
            context.run();
        }).detach();
    subject::print_ports(sockets);
    subject::report(arguments);
}
