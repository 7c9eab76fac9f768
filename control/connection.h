// Connection: one client of the server. It reads a request, has it answered, writes the answer, and begins again.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>

#include "control/transport.h"

namespace stagehand::control {

class Server;

// Lives as long as an operation of the client's socket, or a request that is being answered. All of it belongs to the
// thread of serve(). Only answer() runs on another thread, while that thread does nothing with the connection.
class Connection : public std::enable_shared_from_this<Connection> {
public:
    using Clock = std::chrono::steady_clock;
    using Socket = boost::asio::generic::stream_protocol::socket;

    Connection(Server& server, Socket socket);
    ~Connection();
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;

    void read();
    // Has the request answered. On a thread of work().
    void answer() noexcept;
    // After answer().
    void write();
    // Ends the connection. Also shuts it down, in case a fork of the process has inherited the socket.
    void close() noexcept;

    // Whether a thread of work() has the request, or will get it.
    bool is_with_workers() const { return with_workers_; }
    // When the client was last heard, or last got an answer.
    Clock::time_point since() const { return since_; }

private:
    using Error = boost::system::error_code;
    using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
    using Response = boost::beast::http::response<boost::beast::http::string_body>;

    static bool give(void* sink, const TransportAnswer* answer);
    void on_header(Error error);
    void read_body();
    void on_body(Error error);
    void refuse(Error error);
    void refuse(unsigned status, const char* error, const char* message);
    void on_written(Error error, bool keep);
    void read_to_the_end();
    void wait_until(Clock::time_point until);
    TransportRequest request() const;

    Server& server_;
    Socket socket_;
    boost::asio::steady_timer timer_;
    boost::beast::flat_buffer buffer_;
    std::optional<Parser> parser_;
    std::optional<Response> response_;
    boost::beast::http::response<boost::beast::http::empty_body> go_on_;  // for "Expect: 100-continue"
    std::string authorization_;
    Clock::time_point since_, until_;
    int32_t lane_ = kAnswered;
    bool with_workers_ = false;
    bool last_ = false;  // the connection ends with the next answer
    size_t discarded_ = 0;
};

}  // namespace stagehand::control
