// Server: accepts the clients of a listening socket, and hands their requests to threads that answer them.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>

#include "connection.h"
#include "control/transport.h"
#include "platform/descriptor.h"

namespace stagehand::control {

class Server {
public:
    explicit Server(const TransportHandler& handler);
    ~Server();
    Server(const Server&) = delete;
    Server& operator=(const Server&) = delete;

    // The functions of the transport, see transport.h.
    void serve() noexcept;
    void work(int32_t lane) noexcept;
    void stop() noexcept;
    // Whether the engine has closed the server's descriptors. It then does nothing with their numbers any more, and
    // must not be destroyed.
    bool is_lost() const noexcept { return !identity_.is_at(limits().listening); }

    // The rest is for connections.
    const TransportHandler& handler() const { return handler_; }
    const TransportLimits& limits() const { return handler_.limits; }
    std::chrono::milliseconds patience() const { return std::chrono::milliseconds(limits().patience_ms); }
    void add(Connection& connection) { connections_.push_back(&connection); }
    void remove(Connection& connection) noexcept;
    void hand_over(std::shared_ptr<Connection> connection, int32_t lane);

private:
    struct Lane {
        std::mutex mutex;
        std::condition_variable ready;
        std::deque<std::shared_ptr<Connection>> waiting;
    };
    using Error = boost::system::error_code;

    void begin_waits();
    void take_clients();
    void take_client(platform::Descriptor client);
    bool make_room() noexcept;
    void write_answers();
    void close_all() noexcept;
    void wake() noexcept;

    const TransportHandler handler_;
    const platform::FileIdentity identity_;  // of the listening socket
    std::vector<Connection*> connections_;   // connections that io_ destroys leave it
    boost::asio::io_context io_;
    boost::asio::posix::stream_descriptor listening_;
    boost::asio::posix::stream_descriptor wake_;  // an eventfd: an answer is there, or stop()
    boost::asio::steady_timer rest_;
    bool waits_for_clients_ = false, waits_for_wake_ = false, rests_ = false;

    std::array<Lane, kLanes> lanes_;
    std::mutex answered_mutex_;
    std::vector<std::shared_ptr<Connection>> answered_;  // has room for all connections
    std::atomic<bool> stopping_{false};
};

}  // namespace stagehand::control
