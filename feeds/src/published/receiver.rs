//! From datagrams of one group to whole messages, each once, in order.
