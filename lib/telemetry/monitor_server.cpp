#include "telemetry/monitor_server.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "platform/thread.h"
#include "telemetry/monitor_snapshot.h"

namespace stagehand::telemetry {
namespace {

constexpr auto kPauseWithoutDescriptors = std::chrono::milliseconds(200);
// Nothing wakes a thread that waits for sockets which the engine has closed.
constexpr auto kLongestWait = std::chrono::milliseconds(1000);

// Only the user of the process and root may ask. The permissions of the file say the same, but they can be changed.
bool may_ask(int descriptor) {
    ucred peer = {};
    socklen_t size = sizeof peer;
    return getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
           (peer.uid == geteuid() || peer.uid == 0);
}

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

MonitorServer::MonitorServer(const platform::Descriptor& listening, std::function<std::string()> answer,
                             const Limits& limits)
    : listening_(listening), answer_(std::move(answer)), limits_(limits) {
    clients_.reserve(limits_.clients);
    polled_.reserve(1 + limits_.clients);  // so that the thread allocates memory for answers only
}

Status MonitorServer::start(const platform::Descriptor& listening, std::function<std::string()> answer,
                            const Limits& limits, std::unique_ptr<MonitorServer>* out) {
    std::unique_ptr<MonitorServer> server(new MonitorServer(listening, std::move(answer), limits));
    SH_TRY(platform::start_thread(
        "sh-monitor", [self = server.get()] { self->run(); }, &server->thread_));
    *out = std::move(server);
    return Status();
}

MonitorServer::~MonitorServer() {
    if (!thread_.joinable()) return;
    stopping_ = true;
    if (!listening_.is_lost()) shutdown(listening_.number(), SHUT_RDWR);  // which wakes the thread
    thread_.join();
}

void MonitorServer::run() {
    std::vector<pollfd>& polled = polled_;
    while (!stopping_) {
        if (listening_.is_lost()) {
            log_line(SH_LOG_WARNING, "the monitor has ended, because the process has closed its socket");
            break;
        }
        const auto before = Clock::now();
        const bool accepts = clients_.size() < limits_.clients && before >= accept_from_;
        polled.assign({{listening_.number(), static_cast<short>(accepts ? POLLIN : 0), 0}});
        for (const Client& client : clients_)
            polled.push_back(
                {client.descriptor.number(), static_cast<short>(client.answer.empty() ? POLLIN : POLLOUT), 0});
        if (poll(polled.data(), polled.size(), milliseconds_to_wait(before)) < 0) {
            if (errno != EINTR) std::this_thread::sleep_for(kPauseWithoutDescriptors);  // or of memory
            continue;
        }
        if (polled[0].revents & POLLHUP) break;
        const auto now = Clock::now();
        // Goes from the back, so that erasing a client does not move the clients that follow.
        for (size_t i = clients_.size(); i-- > 0;) {
            const bool goes_on = polled[1 + i].revents ? serve(clients_[i]) : true;
            if (goes_on && now < clients_[i].until) continue;
            let_go(clients_[i]);
            clients_.erase(clients_.begin() + static_cast<ptrdiff_t>(i));
        }
        if (polled[0].revents & POLLIN) take_clients(now);
    }
    for (Client& client : clients_) let_go(client);
    clients_.clear();
}

// Returns the time until the first client's time is up, or until there may be descriptors again.
int MonitorServer::milliseconds_to_wait(Clock::time_point now) const {
    auto until = now + kLongestWait;
    for (const Client& client : clients_) until = std::min(until, client.until);
    if (now < accept_from_) until = std::min(until, accept_from_);
    return static_cast<int>(std::max<int64_t>(0, std::chrono::ceil<std::chrono::milliseconds>(until - now).count()));
}

void MonitorServer::take_clients(Clock::time_point now) {
    while (clients_.size() < limits_.clients) {
        platform::Descriptor descriptor(accept4(listening_.number(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
        if (!descriptor.is_open()) {
            // A client that waits in the queue would make the socket ready all the time.
            if (!would_block() && errno != ECONNABORTED) accept_from_ = now + kPauseWithoutDescriptors;
            return;
        }
        Client client{std::move(descriptor), now + limits_.patience, {}, {}, 0};
        if (may_ask(client.descriptor.number()))
            clients_.push_back(std::move(client));
        else
            let_go(client);
    }
}

// Continues with the client's request. Returns false if the connection can be closed.
bool MonitorServer::serve(Client& client) {
    if (client.answer.empty() && !read_request(client)) return false;
    while (client.sent < client.answer.size()) {
        const ssize_t sent = send(client.descriptor.number(), client.answer.data() + client.sent,
                                  client.answer.size() - client.sent, MSG_NOSIGNAL);
        if (sent < 0) return would_block();
        client.sent += static_cast<size_t>(sent);
    }
    return client.answer.empty();
}

// Returns false if the client has gone, or if no memory is left for its answer.
bool MonitorServer::read_request(Client& client) {
    try {
        while (client.request.size() < limits_.request_bytes && client.request.find('\n') == std::string::npos) {
            char bytes[256];
            const ssize_t got = recv(client.descriptor.number(), bytes,
                                     std::min(sizeof bytes, limits_.request_bytes - client.request.size()), 0);
            if (got < 0) return would_block();
            if (got == 0) return false;
            client.request.append(bytes, static_cast<size_t>(got));
        }
        const bool known = client.request == std::string(kRequest) + "\n";
        client.answer =
            known ? answer_() : refusal_text(std::string("the request is not \"") + kRequest + "\" and a newline");
        return true;
    } catch (...) {
        return false;
    }
}

// The shutdown also ends the connection if a fork of the process has inherited it.
void MonitorServer::let_go(Client& client) {
    if (!client.descriptor.is_lost()) shutdown(client.descriptor.number(), SHUT_RDWR);
    (void)client.descriptor.close();
}

}  // namespace stagehand::telemetry
