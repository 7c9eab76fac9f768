#include "connection.h"

#include <sys/socket.h>

#include <cstring>
#include <exception>

#include <boost/asio/buffer.hpp>
#include <boost/asio/write.hpp>

#include "server.h"

namespace stagehand::control {

namespace http = boost::beast::http;

namespace {

// What a client that was refused still sends is read up to here, so that it can read its answer.
constexpr size_t kMostDiscarded = size_t{4} << 20;
constexpr auto kLongestDiscard = std::chrono::seconds(2);

TransportText text_of(boost::beast::string_view text) { return {text.data(), text.size()}; }

}  // namespace

Connection::Connection(Server& server, Socket socket)
    : server_(server),
      socket_(std::move(socket)),
      timer_(socket_.get_executor()),
      buffer_(server.limits().header_bytes + server.limits().body_bytes),
      since_(Clock::now()) {
    server_.add(*this);
}

Connection::~Connection() {
    close();
    server_.remove(*this);
}

void Connection::close() noexcept {
    if (!socket_.is_open()) return;
    ::shutdown(socket_.native_handle(), SHUT_RDWR);
    Error ignored;
    socket_.close(ignored);
    try {
        timer_.cancel();
    } catch (const std::exception&) {  // it runs out later, and finds nothing
    }
}

// One wait at a time counts: an earlier one that has just run out finds that its time is not there yet.
void Connection::wait_until(Clock::time_point until) {
    until_ = until;
    timer_.expires_at(until);
    timer_.async_wait([weak = weak_from_this()](Error) {
        const auto self = weak.lock();
        if (self && !self->with_workers_ && Clock::now() >= self->until_) self->close();
    });
}

void Connection::read() {
    since_ = Clock::now();
    with_workers_ = false;
    parser_.emplace();
    parser_->header_limit(static_cast<uint32_t>(server_.limits().header_bytes));
    parser_->body_limit(server_.limits().body_bytes);
    wait_until(since_ + server_.patience());
    http::async_read_header(socket_, buffer_, *parser_,
                            [self = shared_from_this()](Error error, size_t) { self->on_header(error); });
}

void Connection::on_header(Error error) {
    if (error) return refuse(error);
    const auto& head = parser_->get();
    const auto found = head.find(http::field::authorization);
    authorization_.assign(found == head.end() ? "" : std::string(found->value()));
    const TransportRequest asked = request();
    // A header that comes twice could mean one thing here and another thing for a proxy.
    if (head.count(http::field::authorization) > 1)
        return refuse(400, "bad_request", "the header Authorization comes twice");
    // Where the body ends is not known then, and it would be taken for none.
    if (head.count(http::field::transfer_encoding) && !parser_->chunked())
        return refuse(400, "bad_request", "the header Transfer-Encoding is not \\\"chunked\\\"");
    const TransportHandler& handler = server_.handler();
    lane_ = handler.admit(handler.user, &asked, this, give);
    if (lane_ == kAnswered) {
        last_ = true;
        return write();
    }
    if (!boost::beast::iequals(head[http::field::expect], "100-continue")) return read_body();
    go_on_ = {http::status::continue_, 11};
    http::async_write(socket_, go_on_, [self = shared_from_this()](Error failure, size_t) {
        if (!failure) self->read_body();
    });
}

void Connection::read_body() {
    http::async_read(socket_, buffer_, *parser_,
                     [self = shared_from_this()](Error error, size_t) { self->on_body(error); });
}

void Connection::on_body(Error error) {
    if (error) return refuse(error);
    with_workers_ = true;
    server_.hand_over(shared_from_this(), lane_);
}

void Connection::refuse(Error error) {
    if (error == http::error::header_limit) return refuse(431, "too_large", "the header is too large");
    // A chunk may also have an extension without an end.
    if (error == http::error::body_limit || error == http::error::buffer_overflow)
        return refuse(413, "too_large", "the body is too large");
    // The client has gone, or the connection is being closed.
    if (error.category() != http::make_error_code(http::error::bad_method).category() ||
        error == http::error::end_of_stream || error == http::error::partial_message)
        return close();
    refuse(400, "bad_request", "the request is not HTTP");
}

void Connection::refuse(unsigned status, const char* error, const char* message) {
    const std::string body = std::string("{\"success\":false,\"changed\":false,\"error\":\"") + error +
                             "\",\"message\":\"" + message + "\"}\n";
    const TransportAnswer answer = {status, "application/json", nullptr, {body.data(), body.size()}};
    last_ = true;
    if (!give(this, &answer)) return close();
    write();
}

TransportRequest Connection::request() const {
    const auto& read = parser_->get();
    return {text_of(read.method_string()),
            text_of(read.target()),
            {authorization_.data(), authorization_.size()},
            {read.body().data(), read.body().size()}};
}

bool Connection::give(void* sink, const TransportAnswer* answer) {
    auto& self = *static_cast<Connection*>(sink);
    try {
        Response& response = self.response_.emplace();
        response.result(answer->status);
        response.set(http::field::content_type, answer->content_type);
        response.set(http::field::cache_control, "no-store");
        if (answer->allow) response.set(http::field::allow, answer->allow);
        if (answer->status == 401) response.set(http::field::www_authenticate, "Bearer");
        response.body().assign(answer->body.data, answer->body.bytes);
        return true;
    } catch (...) {
        self.response_.reset();
        return false;
    }
}

void Connection::answer() noexcept {
    const TransportRequest asked = request();
    const TransportHandler& handler = server_.handler();
    handler.answer(handler.user, &asked, this, give);
}

void Connection::write() {
    with_workers_ = false;
    since_ = Clock::now();
    // Without an answer no memory was left for one.
    if (!socket_.is_open() || !response_) return close();
    const auto& asked = parser_->get();
    const bool keep = !last_ && asked.keep_alive();
    response_->version(asked.version() < 11 ? 10 : 11);
    response_->keep_alive(keep);
    response_->content_length(response_->body().size());
    // The answer to HEAD has no body. It is always a refusal, so the connection ends with it.
    if (asked.method() == http::verb::head) response_->body().clear();
    wait_until(since_ + server_.patience());
    http::async_write(socket_, *response_,
                      [self = shared_from_this(), keep](Error error, size_t) { self->on_written(error, keep); });
}

void Connection::on_written(Error error, bool keep) {
    response_.reset();
    if (error) return close();
    if (keep) return read();
    ::shutdown(socket_.native_handle(), SHUT_WR);
    wait_until(Clock::now() + kLongestDiscard);
    buffer_.clear();
    read_to_the_end();
}

// A socket that is closed while it has bytes to read takes the answer from its client.
void Connection::read_to_the_end() {
    socket_.async_read_some(buffer_.prepare(4096), [self = shared_from_this()](Error error, size_t bytes) {
        self->discarded_ += bytes;
        if (error || self->discarded_ > kMostDiscarded) return self->close();
        self->read_to_the_end();
    });
}

}  // namespace stagehand::control
