#include "control/metrics.h"

#include <cstring>

#include <gtest/gtest.h>

namespace stagehand::control {
namespace {

TEST(ControlMetrics, LabelsAreEscaped) {
    EXPECT_EQ(label("weights"), "\"weights\"");
    EXPECT_EQ(label("a\"b\\c\nd"), "\"a\\\"b\\\\c\\nd\"");
    EXPECT_EQ(label("\x01\xff"), "\"?\xef\xbf\xbd\"");
}

TEST(ControlMetrics, ADocumentWithATag) {
    Figures figures;
    figures.device = "host:0";
    figures.tags = {sh_sized<sh_occupancy_info>()};
    std::strcpy(figures.tags[0].tag, "kv\ncache");
    figures.tags[0].state = SH_OCCUPANCY_RELEASED;
    figures.tags[0].cycles = 3;
    figures.total.state = SH_OCCUPANCY_RELEASED;
    figures.memory.free_bytes = 77;
    const Answer answer = metrics_document(figures, {5, 2});
    EXPECT_STREQ(answer.content_type, "text/plain; version=0.0.4; charset=utf-8");
    for (const char* line : {
             "# TYPE stagehand_tag_cycles_total "
             "counter\nstagehand_tag_cycles_total{device=\"host:0\",tag=\"kv\\ncache\"} 3\n",
             "stagehand_tag_state{device=\"host:0\",tag=\"kv\\ncache\",state=\"released\"} 1\n",
             "stagehand_tag_state{device=\"host:0\",tag=\"kv\\ncache\",state=\"running\"} 0\n",
             "stagehand_sleeping{device=\"host:0\"} 1\n",
             "stagehand_device_free_bytes{device=\"host:0\"} 77\n",
             "stagehand_control_requests_total{device=\"host:0\"} 5\n",
             "stagehand_control_failures_total{device=\"host:0\"} 2\n",
         })
        EXPECT_NE(answer.body.find(line), std::string::npos) << line << answer.body;
    EXPECT_EQ(answer.body.back(), '\n');
    EXPECT_EQ(answer.body.find("stagehand_set"), std::string::npos);
}

TEST(ControlMetrics, ADocumentWithASet) {
    Figures figures;
    figures.device = "host:0";
    telemetry::RuntimeReading& runtime = figures.runtimes.emplace_back();
    runtime.name = "a \"model\"";
    runtime.id = 7;
    telemetry::SetReading& set = runtime.sets.emplace_back();
    set.set = 9;
    set.name = "experts";
    set.info.slots = 40;
    set.info.evictions = 3;
    const Answer answer = metrics_document(figures, {});
    const std::string labels = R"({device="host:0",runtime="a \"model\"",runtime_id="7",set="experts",set_id="9"} )";
    for (const std::string& line :
         {"# TYPE stagehand_set_slots gauge\nstagehand_set_slots" + labels + "40\n",
          "# TYPE stagehand_set_evictions_total counter\nstagehand_set_evictions_total" + labels + "3\n",
          "stagehand_set_hits_total" + labels + "0\n"})
        EXPECT_NE(answer.body.find(line), std::string::npos) << line << answer.body;
}

}  // namespace
}  // namespace stagehand::control
