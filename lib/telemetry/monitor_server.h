// MonitorServer: the monitor's thread. Answers those who connect to a listening socket, a few at a time, and none of them for long.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"

namespace stagehand::telemetry {

// A client sends one line, gets one line, and is let go.
class MonitorServer {
public:
    struct Limits {
        size_t clients = 8;                        // at once; others wait in the socket's queue
        size_t request_bytes = 64;                 // of a request, its newline included
        std::chrono::milliseconds patience{2000};  // from connecting to the answer's last byte
    };

    // Answers on `listening`, which has to stay open and does not block; `answer` is called on the server's thread, and may throw.
    static Status start(int listening, std::function<std::string()> answer, const Limits& limits, std::unique_ptr<MonitorServer>* out);
    // Lets clients go, answered or not, and waits for the thread.
    ~MonitorServer();
    MonitorServer(const MonitorServer&) = delete;
    MonitorServer& operator=(const MonitorServer&) = delete;

    // In the child of a fork, where the thread is not: closes what was inherited. The server must not be destroyed then.
    void abandon();

    static constexpr const char* kRequest = "snapshot";

private:
    using Clock = std::chrono::steady_clock;
    struct Client {
        int descriptor;
        Clock::time_point until;
        std::string request;
        std::string answer;   // not empty: the request was read
        size_t sent = 0;
    };

    MonitorServer(int listening, std::function<std::string()> answer, const Limits& limits);
    void run();
    int milliseconds_to_wait(Clock::time_point now) const;
    void take_clients(Clock::time_point now);
    bool serve(Client& client);
    bool read_request(Client& client);
    void let_go(Client& client);

    const int listening_;
    const std::function<std::string()> answer_;
    const Limits limits_;
    int stop_ = -1;                   // an eventfd
    std::vector<Client> clients_;     // of the thread, like what follows
    std::vector<pollfd> polled_;
    Clock::time_point accept_from_;   // not before: there were no descriptors
    std::thread thread_;
};

}  // namespace stagehand::telemetry
