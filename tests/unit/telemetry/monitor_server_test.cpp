#include "telemetry/monitor_server.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <fstream>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "monitor_client.h"
#include "telemetry/monitor_socket.h"

namespace stagehand::telemetry {
namespace {

using namespace std::chrono_literals;
using test::Connection;
using test::Folder;

// A server that answers with `text`.
class Server {
public:
    explicit Server(std::string text = "answer\n", const MonitorServer::Limits& limits = {}) {
        const Status opened = MonitorSocket::open(path(), &socket_);
        EXPECT_TRUE(opened.ok()) << opened.text();
        const auto answer = [this, text] {
            asked_++;
            if (fails_) throw std::runtime_error("no answer");
            return text;
        };
        const Status started = MonitorServer::start(socket_->descriptor(), answer, limits, &server_);
        EXPECT_TRUE(started.ok()) << started.text();
    }

    std::string path() const { return folder_.at("s"); }
    int asked() const { return asked_; }
    void fail(bool fails) { fails_ = fails; }
    void stop() { server_.reset(); }

    std::string ask(const std::string& request = "snapshot\n") const {
        Connection connection(path());
        EXPECT_TRUE(connection.connected());
        connection.send(request);
        return connection.receive();
    }

private:
    Folder folder_;
    std::atomic<int> asked_{0};
    std::atomic<bool> fails_{false};
    std::unique_ptr<MonitorSocket> socket_;
    std::unique_ptr<MonitorServer> server_;
};

TEST(MonitorServer, AnswersAndLetsGo) {
    Server server;
    EXPECT_EQ(server.ask(), "answer\n");
    EXPECT_EQ(server.ask(), "answer\n");
    EXPECT_EQ(server.asked(), 2);
}

TEST(MonitorServer, WhatIsNoRequestIsSaidToBeNone) {
    Server server;
    using std::string;
    for (const string& request :
         {string("hello\n"), string("\n"), string("SNAPSHOT\n"), string("snapshot \n"), string("snapshot\nmore"),
          string("\0\xff\n", 3), string(64, 'x'), string(100'000, 'x')}) {
        const string answer = server.ask(request);
        EXPECT_NE(answer.find("\"error\""), string::npos) << request.substr(0, 80) << ": " << answer;
    }
    EXPECT_EQ(server.asked(), 0);
    EXPECT_EQ(server.ask(), "answer\n");
}

TEST(MonitorServer, ClientsThatLeaveDoNoHarm) {
    // The answer is too large for the socket's buffer, so sending goes on after the client has closed.
    Server server(std::string(4 << 20, 'x') + "\n");
    for (int i = 0; i < 30; i++) {
        Connection nothing(server.path());
        Connection half(server.path());
        half.send("snap");
        Connection deaf(server.path());
        deaf.send("snapshot\n");
    }
    EXPECT_EQ(server.ask().size(), size_t(4 << 20) + 1);
}

TEST(MonitorServer, FiftyClientsAtOnce) {
    Server server(std::string(1 << 20, 'x') + "\n");
    std::deque<Connection> clients;
    for (int i = 0; i < 50; i++) ASSERT_TRUE(clients.emplace_back(server.path()).connected());
    for (Connection& client : clients) ASSERT_TRUE(client.send("snapshot\n"));
    std::vector<std::thread> readers;
    std::atomic<int> served{0};
    for (Connection& client : clients)
        readers.emplace_back([&] { served += client.receive().size() == size_t(1 << 20) + 1; });
    for (std::thread& reader : readers) reader.join();
    EXPECT_EQ(served, 50);
}

// Clients that say nothing or do not read delay other clients only for the server's patience. The same holds when the
// server stops.
TEST(MonitorServer, SlowClientsAreLetGo) {
    MonitorServer::Limits limits;
    limits.clients = 2;
    limits.patience = 2000ms;
    Server server(std::string(4 << 20, 'x') + "\n", limits);
    Connection silent(server.path());
    Connection deaf(server.path());
    deaf.send("snapshot\n");
    EXPECT_EQ(server.ask().size(), size_t(4 << 20) + 1);
    EXPECT_EQ(silent.receive(), "");
    EXPECT_LT(deaf.receive().size(), size_t(4 << 20));
}

// A process without free descriptors cannot accept clients. It must accept clients again afterwards.
TEST(MonitorServer, GoesOnWhenThereAreDescriptorsAgain) {
    Server server;
    ASSERT_EQ(server.ask(), "answer\n");
    rlimit limit = {};
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    const int client = socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    server.path().copy(address.sun_path, sizeof address.sun_path - 1);
    const rlimit none = {3, limit.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    const int connected = connect(client, reinterpret_cast<const sockaddr*>(&address), sizeof address);
    const ssize_t sent = send(client, "snapshot\n", 9, MSG_NOSIGNAL);
    std::this_thread::sleep_for(50ms);
    char byte = 0;
    const ssize_t got = recv(client, &byte, 1, MSG_DONTWAIT);
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    EXPECT_EQ(connected, 0);
    EXPECT_EQ(sent, 9);
    EXPECT_EQ(got, -1);
    EXPECT_EQ(recv(client, &byte, 1, 0), 1);
    EXPECT_EQ(byte, 'a');
    close(client);
    EXPECT_EQ(server.ask(), "answer\n");
}

}  // namespace
}  // namespace stagehand::telemetry
