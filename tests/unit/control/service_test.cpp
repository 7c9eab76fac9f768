#include "control/service.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace stagehand::control {
namespace {

using namespace std::chrono_literals;
using Json = nlohmann::json;

// Answers each change as `on_change` says.
struct StandIn final : Occupant {
    std::string name() const override { return "host:0"; }
    Status change(const Order& order, sh_occupancy_change* out) override {
        calls++;
        out->tag_count = 1;
        return on_change ? on_change(order) : Status();
    }
    Status total(sh_occupancy_info*) override { return reading; }
    Status tags(std::vector<sh_occupancy_info>* out) override {
        out->assign(1, sh_sized<sh_occupancy_info>());
        return reading;
    }
    Status memory(sh_memory_info*) override { return reading; }
    std::vector<telemetry::RuntimeReading> runtimes() override { return {}; }

    std::atomic<int> calls{0};
    std::function<Status(const Order&)> on_change;
    Status reading;
};

class ControlService : public testing::Test {
protected:
    Answer ask(const char* method, const char* target, const char* body = "", const char* authorization = "") {
        const Request request = {method, target, authorization, body};
        Answer answer;
        if (service_->admit(request, &answer) != kAnswered) answer = service_->answer(request);
        return answer;
    }
    Answer release(const char* body) { return ask("POST", "/release_memory_occupation", body); }
    static std::string snapshot() { return "the process\n"; }
    void make(const std::string& token = "") {
        auto stand_in = std::make_unique<StandIn>();
        stand_in_ = stand_in.get();
        service_ = std::make_unique<Service>(std::move(stand_in), snapshot, token);
    }
    void SetUp() override { make(); }

    StandIn* stand_in_ = nullptr;
    std::unique_ptr<Service> service_;
};

TEST_F(ControlService, ChangesAndReadsHaveLanes) {
    Answer answer;
    EXPECT_EQ(service_->admit({"GET", "/memory", "", ""}, &answer), kReads);
    EXPECT_EQ(service_->admit({"POST", "/sleep", "", ""}, &answer), kChanges);
    EXPECT_EQ(service_->admit({"GET", "/sleep", "", ""}, &answer), kAnswered);
    EXPECT_EQ(answer.status, 405u);
}

TEST_F(ControlService, TheProcessIsToldWithADeviceAndWithout) {
    EXPECT_EQ(ask("GET", "/snapshot").body, "the process\n");
    service_ = std::make_unique<Service>(nullptr, snapshot, "");
    EXPECT_EQ(ask("GET", "/snapshot").body, "the process\n");
    EXPECT_EQ(ask("POST", "/snapshot").status, 405u);
    EXPECT_EQ(ask("GET", "/snapshot?of=all").status, 400u);
    for (const char* target : {"/memory", "/metrics", "/is_sleeping", "/release_memory_occupation"}) {
        const Answer answer = ask("GET", target);
        EXPECT_EQ(answer.status, 404u) << target;
        EXPECT_EQ(Json::parse(answer.body)["error"], "no_device") << target;
    }
    EXPECT_EQ(ask("GET", "/nowhere").status, 404u);
}

TEST_F(ControlService, WithoutTheTokenNothingIsSaid) {
    make("0123456789abcdef");
    for (const char* target : {"/memory", "/nowhere", "/sleep"}) EXPECT_EQ(ask("GET", target).status, 401u) << target;
    EXPECT_EQ(ask("POST", "/sleep", "", "Bearer 0123456789abcdeg").status, 401u);
    EXPECT_EQ(stand_in_->calls, 0);
    EXPECT_EQ(ask("POST", "/sleep", "", "Bearer 0123456789abcdef").status, 200u);
    EXPECT_EQ(ask("GET", "/nowhere", "", "Bearer 0123456789abcdef").status, 404u);
}

TEST_F(ControlService, NothingIsIgnoredSilently) {
    for (const char* target : {"/memory", "/metrics", "/is_sleeping"}) {
        EXPECT_EQ(ask("GET", target, "{}").status, 200u) << target;
        EXPECT_EQ(ask("GET", (std::string("http://localhost") + target).c_str()).status, 200u) << target;
        EXPECT_EQ(ask("GET", (std::string(target) + "?tags=weights").c_str()).status, 400u) << target;
        const Answer answer = ask("GET", target, R"({"tags": ["weights"]})");
        EXPECT_EQ(answer.status, 400u) << target;
        EXPECT_NE(answer.body.find("takes no arguments"), std::string::npos) << answer.body;
    }
}

TEST_F(ControlService, OthersInTheWayAreWaitedFor) {
    stand_in_->on_change = [&](const Order&) { return stand_in_->calls < 4 ? Status(SH_ERROR_BUSY) : Status(); };
    EXPECT_EQ(release("").status, 200u);
    EXPECT_EQ(stand_in_->calls, 4);
}

TEST_F(ControlService, StopEndsWaits) {
    stand_in_->on_change = [](const Order&) { return Status(SH_ERROR_BUSY); };
    std::thread stopper([&] {
        while (!stand_in_->calls) std::this_thread::sleep_for(1ms);
        service_->stop();
    });
    EXPECT_EQ(release(R"({"wait_seconds": 3600})").status, 409u);
    stopper.join();
    stand_in_->calls = 0;
    EXPECT_EQ(release("").status, 409u);
    EXPECT_EQ(stand_in_->calls, 0) << "what has not begun does nothing";
}

TEST_F(ControlService, TooManyChangesAreRefusedAtOnce) {
    std::atomic<bool> hold{true};
    stand_in_->on_change = [&](const Order&) {
        while (hold) std::this_thread::sleep_for(1ms);
        return Status();
    };
    std::vector<std::thread> others;
    for (int i = 0; i < Service::kMostChanges; i++) others.emplace_back([&] { EXPECT_EQ(release("").status, 200u); });
    while (stand_in_->calls < Service::kMostChanges) std::this_thread::sleep_for(1ms);
    const Answer answer = release(R"({"wait_seconds": 3600})");
    EXPECT_EQ(answer.status, 409u);
    EXPECT_EQ(Json::parse(answer.body)["error"], "busy");
    hold = false;
    for (std::thread& other : others) other.join();
    EXPECT_EQ(release("").status, 200u);
}

TEST_F(ControlService, ADeviceThatCannotBeRead) {
    stand_in_->reading = Status(SH_ERROR_INVALID_HANDLE, "device is not an open device");
    for (const char* path : {"/memory", "/metrics", "/is_sleeping"}) {
        const Answer answer = ask("GET", path);
        EXPECT_EQ(answer.status, 500u) << path;
        EXPECT_EQ(Json::parse(answer.body)["error"], "device_closed");
    }
}

}  // namespace
}  // namespace stagehand::control
