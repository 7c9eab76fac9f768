#include "server.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <thread>
#include <utility>

namespace stagehand::control {
namespace {

using platform::Descriptor;

// Nothing wakes a thread that waits for descriptors which the engine has closed.
constexpr auto kLongestWait = std::chrono::seconds(1);
// For a process that has run out of descriptors or of memory.
constexpr auto kRest = std::chrono::milliseconds(200);

// The permissions of the socket's file say the same, but they can be changed.
bool is_same_user(int descriptor) {
    ucred peer = {};
    socklen_t size = sizeof peer;
    return getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
           (peer.uid == geteuid() || peer.uid == 0);
}

}  // namespace

Server::Server(const TransportHandler& handler)
    : handler_(handler), identity_(handler.limits.listening), io_(1), listening_(io_), wake_(io_), rest_(io_) {
    // Descriptors are closed here until an object of Asio takes them over, which does not happen without memory.
    Descriptor eventfd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!eventfd.is_open()) throw std::system_error(errno, std::generic_category(), "eventfd");
    wake_.assign(eventfd.number());
    (void)eventfd.release();
    connections_.reserve(limits().connections + 1);
    answered_.reserve(limits().connections + 1);
    listening_.assign(limits().listening);
}

// The library closes the listening socket itself.
Server::~Server() {
    listening_.release();
    for (Lane& lane : lanes_) lane.waiting.clear();
    answered_.clear();
}

void Server::serve() noexcept {
    while (!stopping_.load() && !is_lost()) {
        try {
            begin_waits();
            io_.run_one_for(kLongestWait);
        } catch (...) {
            // The connection whose operation failed has ended with the operation. The others go on.
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    }
    if (!is_lost()) close_all();
}

// Begins what is not under way: an operation that found no memory is begun again here.
void Server::begin_waits() {
    if (!waits_for_wake_) {
        wake_.async_wait(wake_.wait_read, [this](Error) {
            waits_for_wake_ = false;
            write_answers();
        });
        waits_for_wake_ = true;
    }
    const bool full = connections_.size() >= limits().connections &&
                      std::all_of(connections_.begin(), connections_.end(),
                                  [](const Connection* connection) { return connection->is_with_workers(); });
    if (!waits_for_clients_ && !rests_ && !full) {
        listening_.async_wait(listening_.wait_read, [this](Error error) {
            waits_for_clients_ = false;
            if (!error) take_clients();
        });
        waits_for_clients_ = true;
    }
}

void Server::take_clients() {
    while (make_room()) {
        Descriptor client(accept4(limits().listening, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
        if (client.is_open()) {
            take_client(std::move(client));
            continue;
        }
        if (errno == EINTR || errno == ECONNABORTED) continue;
        if (errno == EAGAIN || errno == EWOULDBLOCK) return;
        // Clients that wait in the queue would make the socket ready all the time.
        rest_.expires_after(kRest);
        rest_.async_wait([this](Error) { rests_ = false; });
        rests_ = true;
        return;
    }
}

void Server::take_client(Descriptor client) {
    const int number = client.number();
    if (limits().same_user_only && !is_same_user(number)) return;
    sockaddr_storage own = {};
    socklen_t size = sizeof own;
    getsockname(number, reinterpret_cast<sockaddr*>(&own), &size);
    Connection::Socket socket(io_);
    Error error;
    socket.assign(boost::asio::generic::stream_protocol(own.ss_family, 0), number, error);
    if (error) return;
    (void)client.release();
    std::make_shared<Connection>(*this, std::move(socket))->read();
}

// Clients that keep the others waiting make way for them: the one that was heard longest ago goes first. Returns false
// if all clients wait for their answers.
bool Server::make_room() noexcept {
    if (connections_.size() < limits().connections) return true;
    Connection* oldest = nullptr;
    for (Connection* connection : connections_)
        if (!connection->is_with_workers() && (!oldest || connection->since() < oldest->since())) oldest = connection;
    if (!oldest) return false;
    oldest->close();
    remove(*oldest);
    return true;
}

void Server::remove(Connection& connection) noexcept { std::erase(connections_, &connection); }

void Server::hand_over(std::shared_ptr<Connection> connection, int32_t lane) {
    Lane& to = lanes_[static_cast<size_t>(lane)];
    {
        std::lock_guard lock(to.mutex);
        to.waiting.push_back(std::move(connection));
    }
    to.ready.notify_one();
}

void Server::work(int32_t lane) noexcept {
    Lane& own = lanes_[static_cast<size_t>(lane)];
    while (true) {
        std::shared_ptr<Connection> connection;
        {
            std::unique_lock lock(own.mutex);
            own.ready.wait(lock, [&] { return stopping_.load() || !own.waiting.empty(); });
            if (stopping_.load()) return;
            connection = std::move(own.waiting.front());
            own.waiting.pop_front();
        }
        connection->answer();
        {
            std::lock_guard lock(answered_mutex_);
            answered_.push_back(std::move(connection));
        }
        wake();
    }
}

// What was an eventfd may be a file of the engine by now.
void Server::wake() noexcept {
    if (!is_lost()) eventfd_write(wake_.native_handle(), 1);
}

void Server::write_answers() {
    eventfd_t count = 0;
    eventfd_read(wake_.native_handle(), &count);
    while (true) {
        std::shared_ptr<Connection> connection;
        {
            std::lock_guard lock(answered_mutex_);
            if (answered_.empty()) return;
            connection = std::move(answered_.back());
            answered_.pop_back();
        }
        try {
            connection->write();
        } catch (...) {
            connection->close();
        }
    }
}

void Server::close_all() noexcept {
    while (!connections_.empty()) {
        connections_.back()->close();
        connections_.pop_back();
    }
}

void Server::stop() noexcept {
    for (Lane& lane : lanes_) {
        std::lock_guard lock(lane.mutex);
        stopping_.store(true);
    }
    for (Lane& lane : lanes_) lane.ready.notify_all();
    wake();
}

}  // namespace stagehand::control
