#include "control/order.h"

#include <gtest/gtest.h>

#include <stagehand/occupancy.h>

#include "../comma_locale.h"

namespace stagehand::control {
namespace {

using Tags = std::vector<std::string>;

Status read(const std::string& target, const std::string& body, Order* out) {
    const Route* const route = find_route(target);
    EXPECT_TRUE(route && route->changes()) << target;
    return read_order(*route, {"POST", target, "", body}, out);
}

Order read(const std::string& target, const std::string& body = "") {
    Order order;
    const Status status = read(target, body, &order);
    EXPECT_TRUE(status.ok()) << target << ' ' << body << ": " << status.text();
    return order;
}

const std::string kRelease = "/release_memory_occupation", kResume = "/resume_memory_occupation";

TEST(ControlOrder, RoutesAndMethods) {
    for (const std::string& path : {kRelease, kResume}) {
        EXPECT_TRUE(find_route(path)->takes("GET"));
        EXPECT_TRUE(find_route(path)->takes("POST"));
        EXPECT_FALSE(find_route(path)->takes("PUT"));
    }
    for (const char* path : {"/memory", "/metrics", "/is_sleeping"}) {
        EXPECT_TRUE(find_route(path)->takes("GET"));
        EXPECT_FALSE(find_route(path)->takes("POST"));
        EXPECT_FALSE(find_route(path)->changes());
    }
    for (const char* path : {"/sleep", "/wake_up"}) {
        EXPECT_FALSE(find_route(path)->takes("GET")) << "a link on a page would release the memory";
        EXPECT_TRUE(find_route(path)->takes("POST"));
    }
    EXPECT_TRUE(find_route("/memory?x=1"));
    for (const char* path : {"http://localhost/memory", "http://127.0.0.1:8431/memory?x=1", "HTTP://[::1]:1/memory"})
        EXPECT_TRUE(find_route(path)) << path;
    for (const char* path :
         {"http://", "http://localhost", "http://localhost?/memory", "http://localhost//memory",
          "/http://localhost/memory", "", "/", "/memory/", "/Memory", "/release", "memory", "//memory"})
        EXPECT_FALSE(find_route(path)) << path;
}

TEST(ControlOrder, BodiesOfSglang) {
    for (const char* body : {"", "{}", "null", " \n", R"({"tags": null})", R"({"tags": []})"}) {
        const Order order = read(kRelease, body);
        EXPECT_EQ(order.tags, Tags());
        EXPECT_FALSE(order.resumes || order.if_needed);
        EXPECT_EQ(order.contents, uint32_t(SH_CONTENTS_DEFAULT));
        EXPECT_EQ(order.wait_seconds, 5);
    }
    const Order order = read(kRelease, R"({"tags": ["weights", "kv_cache"], "stage_to_cpu": true, "if_needed": true,
                                          "wait_seconds": 0.5})");
    EXPECT_EQ(order.tags, Tags({"weights", "kv_cache"}));
    EXPECT_EQ(order.contents, uint32_t(SH_CONTENTS_STAGE));
    EXPECT_TRUE(order.if_needed);
    EXPECT_EQ(order.wait_seconds, 0.5);
    EXPECT_EQ(read(kRelease, R"({"stage_to_cpu": false})").contents, uint32_t(SH_CONTENTS_DROP));
    EXPECT_TRUE(read(kResume, R"({"tags": ["weights"], "stage_to_cpu": true})").resumes);
}

TEST(ControlOrder, QueriesOfVllm) {
    EXPECT_TRUE(read("/sleep").if_needed);
    EXPECT_EQ(read("/sleep").contents, uint32_t(SH_CONTENTS_DEFAULT));
    EXPECT_EQ(read("/sleep?level=1&mode=abort").contents, uint32_t(SH_CONTENTS_DEFAULT));
    EXPECT_EQ(read("/sleep?level=2&").contents, uint32_t(SH_CONTENTS_DROP));
    EXPECT_TRUE(read("/wake_up", "{}").resumes);
    EXPECT_EQ(read("/wake_up?tags=weights&tags=kv%5fcache&tags=a+b").tags, Tags({"weights", "kv_cache", "a b"}));
    EXPECT_EQ(read("/wake_up?wait_seconds=2.5").wait_seconds, 2.5);
    EXPECT_EQ(read("http://localhost/wake_up?wait_seconds=2.5").wait_seconds, 2.5) << "as a proxy asks";
}

// An engine may have set any locale.
TEST(ControlOrder, NumbersAreTheSameInEveryLocale) {
    const test::CommaLocale comma;
    if (!comma.is_set()) GTEST_SKIP() << "a locale with a comma cannot be made here";
    EXPECT_EQ(read("/sleep?wait_seconds=0.5").wait_seconds, 0.5);
    EXPECT_EQ(read(kRelease, R"({"wait_seconds": 0.5})").wait_seconds, 0.5);
    Order order;
    EXPECT_FALSE(read("/sleep?wait_seconds=0,5", "", &order).ok());
}

TEST(ControlOrder, WhatIsWrongIsNamed) {
    const std::string long_tag(64, 'x');
    const struct {
        std::string target, body, says;
    } cases[] = {
        {kRelease, "{", "byte 2"},
        {kRelease, "[]", "no JSON object"},
        {kRelease, "{} {}", "not JSON"},
        {kRelease, "\xff", "not JSON"},
        {kRelease, std::string("{}\0{\"tags\": [\"weights\"]}", 25), "byte 3"},
        {kRelease, R"({"if_needed": true, "if_needed": false})", "\"if_needed\" comes twice"},
        {"/sleep?level=1&level=2", "", "\"level\" comes twice"},
        {kRelease, R"({"tags": "weights"})", "neither an array nor null"},
        {kRelease, R"({"tags": [1]})", "no text: \"1\""},
        {kRelease, R"({"tags": [""]})", "1 to 63 bytes"},
        {kRelease, R"({"tags": [")" + long_tag + R"("]})", "1 to 63 bytes"},
        {kRelease, R"({"tags": ["a\u0000b"]})", "NUL"},
        {kRelease, R"({"stage_to_cpu": "yes"})", "stage_to_cpu"},
        {kRelease, R"({"if_needed": 1})", "if_needed"},
        {kRelease, R"({"wait_seconds": -1})", "wait_seconds"},
        {kRelease, R"({"wait_seconds": 1e9})", "wait_seconds"},
        {kRelease, R"({"cpu_backup_tags": []})", "cpu_backup_tags"},
        {kRelease + "?tags=weights", "", "JSON body"},
        {"/sleep?level=0", "", "scheduler"},
        {"/sleep?level=3", "", "\"3\""},
        {"/sleep?mode=now", "", "\"now\""},
        {"/sleep?tag=weights", "", "\"tag\""},
        {"/sleep?tags=", "", "1 to 63 bytes"},
        {"/sleep?tags=%zz", "", "%"},
        {"/sleep?tags=%4", "", "%"},
        {"/sleep", R"({"level": 2})", "query"},
        {"/wake_up?level=1", "", "\"level\""},
        {"/wake_up?wait_seconds=soon", "", "\"soon\""},
        {"/wake_up?wait_seconds=nan", "", "wait_seconds"},
        {"/wake_up?wait_seconds=0x10", "", "\"0x10\""},
        {"/wake_up?wait_seconds=+1", "", "\" 1\""},
        {"/wake_up?wait_seconds=1%20", "", "\"1 \""},
        {"/wake_up?wait_seconds=%2b1", "", "\"+1\""},
        {"/wake_up?wait_seconds=", "", "\"\""},
    };
    for (const auto& wrong : cases) {
        Order order;
        const Status status = read(wrong.target, wrong.body, &order);
        EXPECT_EQ(status.code(), SH_ERROR_INVALID_ARGUMENT) << wrong.target << ' ' << wrong.body;
        EXPECT_NE(std::string(status.text()).find(wrong.says), std::string::npos) << status.text();
    }
}

TEST(ControlOrder, DeepAndLongBodiesAreRefused) {
    Order order;
    EXPECT_FALSE(read(kRelease, std::string(60000, '['), &order).ok());
    std::string many = R"({"tags": ["t")";
    for (int i = 0; i < 2000; i++) many += R"(,"t")";
    EXPECT_FALSE(read(kRelease, many + "]}", &order).ok());
}

}  // namespace
}  // namespace stagehand::control
