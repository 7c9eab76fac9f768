// The control of a device, from the sockets to the memory: many clients at once, on both transports, with failures of
// the backend, and with clients that send nothing or half a request.
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <stagehand/stagehand.h>

#include "../core/socket_client.h"
#include "fault/fault.h"
#include "http_client.h"
#include "plugin.h"
#include "scale.h"

namespace stagehand::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

const std::string kToken = "token-0123456789";
constexpr uint64_t kWeights = 2 << 20, kCache = 1 << 18;

std::string last_text() {
    std::string text(sh_last_error(nullptr, 0), '\0');
    if (!text.empty()) sh_last_error(text.data(), text.size() + 1);
    return text;
}
#define MUST(call) ASSERT_EQ((call), SH_OK) << last_text()

// A device with two tags. Its control answers on a Unix socket, or on a port.
class ControlTest : public testing::TestWithParam<bool> {
protected:
    void SetUp() override {
        sh_device_options options = SH_DEVICE_OPTIONS_INIT;
        options.backend_options = "wrap=host;capacity=16MiB";
        MUST(sh_device_open("fault", &options, &device_));
        allocate("weights", kWeights, SH_CONTENTS_STAGE, &weights_);
        allocate("kv_cache", kCache, SH_CONTENTS_DROP, &cache_);
        for (uint64_t i = 0; i < kWeights; i++) bytes()[i] = static_cast<uint8_t>(i * 13 + i / 255);
        MUST(sh_occupancy_add_callbacks(device_, before_pause, nullptr, this, nullptr));
        start();
    }
    void TearDown() override {
        hold_ = false;
        EXPECT_EQ(sh_scope_end(control_), SH_OK) << last_text();
        sh_device_close(device_);
    }

    void allocate(const char* tag, uint64_t bytes, uint32_t contents, uint64_t* out) {
        sh_alloc_options options = SH_ALLOC_OPTIONS_INIT;
        options.tag = tag;
        options.contents = contents;
        MUST(sh_alloc(device_, bytes, &options, out));
    }
    void start() {
        sh_control_options options = SH_CONTROL_OPTIONS_INIT;
        const std::string path = folder_.at("control");
        options.address = GetParam() ? "127.0.0.1:0" : path.c_str();
        token_ = GetParam() ? kToken : "";
        options.token = GetParam() ? kToken.c_str() : nullptr;
        auto info = sh_sized<sh_control_info>();
        MUST(sh_control_start(device_, &options, &info, &control_));
        address_ = info.address;
        EXPECT_EQ(info.port != 0, GetParam());
    }

    HttpAnswer post(const std::string& target, const std::string& body = "") {
        return http(address_, "POST", target, body, token_);
    }
    HttpAnswer get(const std::string& target) { return http(address_, "GET", target, "", token_); }
    bool sleeps() { return get("/is_sleeping").json().value("is_sleeping", false); }

    uint8_t* bytes() const { return reinterpret_cast<uint8_t*>(weights_); }
    void expect_whole() const {
        uint64_t wrong = 0;
        for (uint64_t i = 0; i < kWeights; i++) wrong += bytes()[i] != static_cast<uint8_t>(i * 13 + i / 255);
        EXPECT_EQ(wrong, 0u);
    }

    static int32_t before_pause(const char* const*, uint64_t, char* message, uint64_t, void* data) {
        auto& self = *static_cast<ControlTest*>(data);
        self.pauses_++;
        while (self.hold_) std::this_thread::sleep_for(1ms);
        if (self.stops_in_pause_) self.status_in_pause_ = sh_scope_end(self.control_);
        if (self.refuse_) std::strcpy(message, "the engine is \"busy\"");
        return self.refuse_;
    }

    Folder folder_;
    sh_device* device_ = nullptr;
    sh_scope* control_ = nullptr;
    uint64_t weights_ = 0, cache_ = 0;
    std::string address_, token_;
    std::atomic<bool> hold_{false}, refuse_{false}, stops_in_pause_{false};
    std::atomic<int> pauses_{0};
    std::atomic<sh_status> status_in_pause_{SH_OK};
};
INSTANTIATE_TEST_SUITE_P(, ControlTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Tcp" : "UnixSocket"; });

TEST_P(ControlTest, ReleasesAndResumes) {
    HttpAnswer answer = post("/release_memory_occupation", R"({"tags": ["weights"], "stage_to_cpu": true})");
    EXPECT_EQ(answer.status, 200) << answer.body;
    EXPECT_EQ(answer.json()["device_bytes"], kWeights);
    EXPECT_TRUE(sleeps());
    EXPECT_EQ(post("/release_memory_occupation", R"({"tags": ["weights"]})").status, 409);
    answer = post("/release_memory_occupation", R"({"tags": ["weights"], "if_needed": true})");
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.json()["changed"], false);
    EXPECT_EQ(post("/release_memory_occupation", R"({"tags": ["nothing"]})").status, 400);
    EXPECT_EQ(get("/release_memory_occupation").status, 200) << "the other tag";
    EXPECT_EQ(get("/release_memory_occupation").status, 409);
    const auto memory = get("/memory").json();
    EXPECT_EQ(memory["total"]["state"], "released");
    EXPECT_EQ(memory["device_memory"]["used_bytes"], 0);
    EXPECT_EQ(post("/wake_up?tags=weights&tags=kv_cache").json()["tag_count"], 2);
    EXPECT_EQ(post("/wake_up").json()["changed"], false);
    EXPECT_EQ(post("/resume_memory_occupation").status, 409);
    EXPECT_FALSE(sleeps());
    expect_whole();
    EXPECT_EQ(post("/sleep?level=2").json()["copied_bytes"], 0);
    EXPECT_EQ(post("/wake_up").status, 200);
}

TEST_P(ControlTest, OnlyTheRightClientsGetIn) {
    if (GetParam()) {
        EXPECT_EQ(http(address_, "GET", "/memory").status, 401);
        EXPECT_EQ(http(address_, "GET", "/memory", "", kToken + "x").status, 401);
        EXPECT_NE(http(address_, "GET", "/memory").head.find("WWW-Authenticate: Bearer"), std::string::npos);
        HttpClient twice(address_);
        twice.send("GET /memory HTTP/1.1\r\nAuthorization: Bearer " + kToken + "\r\nAuthorization: Bearer x\r\n\r\n");
        EXPECT_EQ(twice.receive().status, 400);
    } else {
        struct stat found = {};
        ASSERT_EQ(stat(address_.c_str(), &found), 0);
        EXPECT_EQ(found.st_mode & 0777, 0600u);
        EXPECT_EQ(http(address_, "GET", "/memory").status, 200);
    }
    EXPECT_EQ(pauses_, 0);
}

TEST_P(ControlTest, WhatIsNoRequestIsRefused) {
    EXPECT_EQ(get("/nowhere").status, 404);
    EXPECT_EQ(post("/memory").status, 405);
    EXPECT_EQ(get("/memory?tags=weights").status, 400) << "nothing is ignored";
    EXPECT_EQ(http(address_, "GET", "/memory", R"({"tags": ["weights"]})", token_).status, 400);
    EXPECT_EQ(get("http://localhost/memory").status, 200) << "as a proxy asks";
    EXPECT_EQ(post("/release_memory_occupation", "{").status, 400);
    EXPECT_EQ(post("/release_memory_occupation", std::string(65537, ' ')).status, 413);
    EXPECT_EQ(post("/release_memory_occupation", std::string(3 << 20, 'x')).status, 413);
    EXPECT_EQ(post("/release_memory_occupation", std::string(65536, ' ')).status, 200);
    EXPECT_EQ(post("/wake_up").status, 200);
    HttpClient nonsense(address_), long_header(address_);
    nonsense.send("nonsense\r\n\r\n");
    EXPECT_EQ(nonsense.receive().status, 400);
    EXPECT_TRUE(nonsense.is_closed_by_peer());
    long_header.send("GET /memory HTTP/1.1\r\nX: " + std::string(20000, 'x'));
    EXPECT_EQ(long_header.receive().status, 431);
    HttpClient chunked(address_);
    chunked.send("POST /sleep HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" +
                 (token_.empty() ? "" : "Authorization: Bearer " + token_ + "\r\n") + "\r\n");
    for (int i = 0; i < 70; i++) chunked.send("400\r\n" + std::string(1024, ' ') + "\r\n");
    EXPECT_EQ(chunked.receive().status, 413);
    const std::string post_line = "POST /release_memory_occupation HTTP/1.1\r\n" +
                                  (token_.empty() ? "" : "Authorization: Bearer " + token_ + "\r\n");
    HttpClient packed(address_), endless(address_);
    packed.send(post_line + "Transfer-Encoding: gzip\r\n\r\n" + R"({"tags": ["weights"]})");
    EXPECT_EQ(packed.receive().status, 400) << "it would be taken for a request without a body";
    endless.send(post_line + "Transfer-Encoding: chunked\r\n\r\n1;" + std::string(1 << 20, 'x'));
    EXPECT_EQ(endless.receive().status, 413) << "the extension of a chunk takes no memory without bound";
    EXPECT_FALSE(sleeps());
}

TEST_P(ControlTest, AConnectionServesManyRequests) {
    HttpClient client(address_);
    const std::string text = request_text("GET", "/is_sleeping", "", token_);
    for (int i = 0; i < 20; i++) {
        ASSERT_TRUE(client.send(text));
        ASSERT_EQ(client.receive().status, 200);
    }
    client.send(text + text + text);
    for (int i = 0; i < 3; i++) EXPECT_EQ(client.receive().status, 200);
    client.send("GET /is_sleeping HTTP/1.0\r\n" + (token_.empty() ? "" : "Authorization: Bearer " + token_ + "\r\n") +
                "\r\n");
    EXPECT_EQ(client.receive().status, 200);
    EXPECT_TRUE(client.is_closed_by_peer());
}

TEST_P(ControlTest, ClientsThatHangKeepNobodyOut) {
    std::vector<std::unique_ptr<HttpClient>> hanging;
    const auto hang = [&] {
        for (int i = 0; i < 60; i++) {
            hanging.push_back(std::make_unique<HttpClient>(address_));
            if (i % 3 == 1) hanging.back()->send("GET /mem");
            if (i % 3 == 2) {
                const std::string whole = request_text("POST", "/sleep", std::string(1000, ' '), token_);
                hanging.back()->send(whole.substr(0, whole.size() - 1));
            }
        }
    };
    const auto begin = Clock::now();
    for (int round = 0; round < 3; round++) {
        hang();
        EXPECT_EQ(get("/memory").status, 200);
        EXPECT_EQ(post("/sleep").status, 200);
        EXPECT_EQ(post("/wake_up").status, 200);
    }
    EXPECT_LT(Clock::now() - begin, 9s) << "they were waited for";
    EXPECT_EQ(pauses_, 3);
    expect_whole();
}

TEST_P(ControlTest, FiguresAreReadWhileAPauseTakesLong) {
    hold_ = true;
    std::vector<std::thread> clients;
    std::atomic<int> released{0}, repeated{0};
    for (int i = 0; i < 3; i++)
        clients.emplace_back([&] {
            const HttpAnswer answer = post("/release_memory_occupation", R"({"if_needed": true, "wait_seconds": 60})");
            EXPECT_EQ(answer.status, 200) << answer.body;
            answer.json()["changed"] == true ? released++ : repeated++;
        });
    while (!pauses_) std::this_thread::sleep_for(1ms);
    std::this_thread::sleep_for(50ms);
    for (int i = 0; i < 40; i++) EXPECT_EQ(get("/metrics").status, 200);
    HttpAnswer busy = post("/release_memory_occupation", R"({"wait_seconds": 0})");
    EXPECT_EQ(busy.status, 409);
    EXPECT_EQ(busy.json()["error"], "busy");
    hold_ = false;
    for (std::thread& client : clients) client.join();
    EXPECT_EQ(released, 1);
    EXPECT_EQ(repeated, 2);
    EXPECT_EQ(post("/wake_up").status, 200);
    expect_whole();
}

TEST_P(ControlTest, ACallbackRefuses) {
    refuse_ = true;
    const HttpAnswer answer = post("/sleep");
    EXPECT_EQ(answer.status, 409);
    EXPECT_EQ(answer.json()["error"], "refused");
    EXPECT_NE(answer.json()["message"].get<std::string>().find("the engine is \"busy\""), std::string::npos);
    EXPECT_FALSE(sleeps());
    refuse_ = false;
    EXPECT_EQ(post("/sleep").status, 200);
    EXPECT_EQ(post("/wake_up").status, 200);
}

TEST_P(ControlTest, ABackendThatFailsAnswers500AndARetryWorks) {
    const auto arm = FAULT(sh_fault_arm);
    const auto disarm = FAULT(sh_fault_disarm);
    const auto fail = [&](const char* call) {
        sh_fault_plan plan = {};
        plan.struct_size = sizeof plan;
        plan.call = call;
        plan.at = 1;
        plan.count = 0;  // from then on
        EXPECT_EQ(arm(&plan), SH_OK);
    };
    fail("copy_to_host");
    HttpAnswer answer = post("/release_memory_occupation");
    EXPECT_EQ(answer.status, 500) << answer.body;
    EXPECT_EQ(answer.json()["success"], false);
    disarm();
    EXPECT_EQ(post("/release_memory_occupation").status, 200);
    fail("pages_create");
    EXPECT_EQ(post("/resume_memory_occupation").status, 500);
    EXPECT_TRUE(sleeps());
    disarm();
    EXPECT_EQ(post("/resume_memory_occupation").status, 200);
    expect_whole();
    fail("memory_info");
    EXPECT_EQ(get("/memory").status, 500);
    disarm();
    EXPECT_EQ(get("/memory").status, 200);
}

TEST_P(ControlTest, ManyClientsAtOnce) {
    const uint64_t rounds = scaled(40);
    std::atomic<int> wrong{0};
    std::vector<std::thread> clients;
    for (int i = 0; i < 8; i++)
        clients.emplace_back([&, i] {
            for (uint64_t round = 0; round < rounds; round++) {
                const char* const targets[] = {"/sleep?wait_seconds=60", "/wake_up?wait_seconds=60", "/memory",
                                               "/metrics"};
                const uint64_t which = (uint64_t(i) + round) % 4;
                const HttpAnswer answer = which < 2 ? post(targets[which]) : get(targets[which]);
                // More than three changes at once are refused.
                if (answer.status != 200 && !(which < 2 && answer.status == 409)) wrong++;
                if ((uint64_t(i) + round) % 7 == 0) HttpClient(address_).send("POST /sl");
            }
        });
    for (std::thread& client : clients) client.join();
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(post("/wake_up").status, 200);
    expect_whole();
}

TEST_P(ControlTest, StopsWhileRequestsRun) {
    for (uint64_t round = 0; round < scaled(20); round++) {
        std::vector<std::thread> clients;
        for (int i = 0; i < 4; i++)
            clients.emplace_back([&, i] { i % 2 ? post("/sleep?wait_seconds=60") : get("/metrics"); });
        HttpClient silent(address_);
        std::this_thread::sleep_for(std::chrono::microseconds(300 * round));
        MUST(sh_scope_end(control_));
        control_ = nullptr;
        EXPECT_TRUE(silent.is_closed_by_peer());
        for (std::thread& client : clients) client.join();
        EXPECT_FALSE(HttpClient(address_).connected());
        sh_resume_options resume = SH_RESUME_OPTIONS_INIT;
        resume.flags = SH_OCCUPANCY_REPEAT;
        MUST(sh_resume(device_, &resume, nullptr));
        expect_whole();
        start();
    }
}

TEST_P(ControlTest, ACallbackMustNotStopItsOwnControl) {
    stops_in_pause_ = true;
    EXPECT_EQ(post("/sleep").status, 200);
    EXPECT_EQ(status_in_pause_, SH_ERROR_INVALID_STATE);
    stops_in_pause_ = false;
    EXPECT_EQ(post("/wake_up").status, 200);
}

TEST_P(ControlTest, AClientThatLeavesChangesNothing) {
    hold_ = true;
    {
        HttpClient client(address_);
        client.send(request_text("POST", "/sleep", "", token_));
        while (!pauses_) std::this_thread::sleep_for(1ms);
    }
    hold_ = false;
    while (get("/memory").json()["total"]["state"] != "released") std::this_thread::sleep_for(1ms);
    EXPECT_EQ(post("/wake_up").status, 200);
    expect_whole();
}

TEST_P(ControlTest, AClosedDeviceIsToldOf) {
    sh_device_close(device_);
    for (const char* target : {"/memory", "/metrics", "/is_sleeping"}) EXPECT_EQ(get(target).status, 500);
    EXPECT_EQ(post("/sleep").json()["error"], "device_closed");
    device_ = nullptr;
}

TEST_P(ControlTest, Options) {
    sh_scope* other = nullptr;
    const auto start = [&](const char* address, const char* token) {
        sh_control_options options = SH_CONTROL_OPTIONS_INIT;
        options.address = address;
        options.token = token;
        return sh_control_start(device_, &options, nullptr, &other);
    };
    EXPECT_EQ(start("127.0.0.1:0", nullptr), SH_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(start("127.0.0.1:0", "short"), SH_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(start("0.0.0.0:0", kToken.c_str()), SH_ERROR_INVALID_ARGUMENT);
    EXPECT_NE(last_text().find("0.0.0.0:0"), std::string::npos);
    EXPECT_EQ(start(address_.c_str(), kToken.c_str()), SH_ERROR_IO) << "it is taken";
    EXPECT_EQ(start(folder_.path().c_str(), nullptr), SH_ERROR_IO) << "a folder";
    EXPECT_EQ(sh_control_start(device_, nullptr, nullptr, nullptr), SH_ERROR_INVALID_ARGUMENT);
    const std::string path = folder_.at("second");
    ASSERT_EQ(start(path.c_str(), kToken.c_str()), SH_OK) << last_text();
    EXPECT_EQ(http(path, "GET", "/memory").status, 401) << "a token on a Unix socket counts as well";
    EXPECT_EQ(http(path, "GET", "/memory", "", kToken).status, 200);
    EXPECT_EQ(sh_scope_end(other), SH_OK);
    EXPECT_EQ(sh_scope_end(other), SH_ERROR_INVALID_HANDLE);
    EXPECT_FALSE(exists(path));
}

}  // namespace
}  // namespace stagehand::test
