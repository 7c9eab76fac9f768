#include "control/answers.h"

#include <cstring>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace stagehand::control {
namespace {

using Json = nlohmann::json;

sh_occupancy_info tag(const char* name, uint32_t state) {
    auto info = sh_sized<sh_occupancy_info>();
    std::strncpy(info.tag, name, sizeof info.tag - 1);
    info.state = state;
    return info;
}

sh_occupancy_change changed(uint32_t tags) {
    auto change = sh_sized<sh_occupancy_change>();
    change.tag_count = tags;
    change.device_bytes = 4096;
    change.ns = 1500000000;
    return change;
}

TEST(ControlAnswers, StatusOfEachOutcome) {
    const struct {
        bool resumes;
        sh_status code;
        unsigned status;
        const char* error;
    } cases[] = {
        {false, SH_ERROR_NOT_FOUND, 400, "unknown_tag"},
        {true, SH_ERROR_NOT_FOUND, 400, "unknown_tag"},
        {false, SH_ERROR_INVALID_ARGUMENT, 400, "bad_request"},
        {false, SH_ERROR_INVALID_STATE, 409, "already_released"},
        {true, SH_ERROR_INVALID_STATE, 409, "not_released"},
        {false, SH_ERROR_BUSY, 409, "busy"},
        {false, SH_ERROR_CALLBACK, 409, "refused"},
        {true, SH_ERROR_BUDGET, 500, "budget"},
        {true, SH_ERROR_OUT_OF_DEVICE_MEMORY, 500, "out_of_device_memory"},
        {false, SH_ERROR_OUT_OF_HOST_MEMORY, 500, "out_of_host_memory"},
        {false, SH_ERROR_UNSUPPORTED, 500, "unsupported"},
        {false, SH_ERROR_INVALID_HANDLE, 500, "device_closed"},
        {false, SH_ERROR_BACKEND, 500, "failed"},
        {false, SH_ERROR_DEVICE_LOST, 500, "failed"},
    };
    for (const auto& outcome : cases) {
        Order order;
        order.resumes = outcome.resumes;
        const Answer answer = answer_to(order, Status(outcome.code, "the \"reason\""), changed(0), {});
        EXPECT_EQ(answer.status, outcome.status) << outcome.error;
        const Json body = Json::parse(answer.body);
        EXPECT_EQ(
            body,
            Json({{"success", false}, {"changed", false}, {"error", outcome.error}, {"message", "the \"reason\""}}));
    }
}

TEST(ControlAnswers, ARequestForAllTagsThatFindsNothingToDo) {
    const std::vector<sh_occupancy_info> released = {tag("a", SH_OCCUPANCY_RELEASED)},
                                         running = {tag("a", SH_OCCUPANCY_RUNNING)};
    Order release, resume;
    resume.resumes = true;
    EXPECT_EQ(answer_to(release, Status(), changed(0), released).status, 409u);
    EXPECT_EQ(answer_to(resume, Status(), changed(0), running).status, 409u);
    EXPECT_EQ(answer_to(release, Status(), changed(0), {}).status, 200u) << "a device without tags has nothing to give";
    release.if_needed = resume.if_needed = true;
    for (const Answer& answer :
         {answer_to(release, Status(), changed(0), released), answer_to(resume, Status(), changed(0), running)}) {
        EXPECT_EQ(answer.status, 200u);
        EXPECT_EQ(Json::parse(answer.body)["changed"], false);
    }
}

TEST(ControlAnswers, FailuresBeforeARequestIsRead) {
    EXPECT_EQ(unauthorized().status, 401u);
    EXPECT_EQ(unknown_path("/x?y=1").status, 404u);
    EXPECT_EQ(Json::parse(unknown_path("/x?y=1").body)["message"].get<std::string>().find("y=1"), std::string::npos);
    const Answer wrong = wrong_method(*find_route("/sleep"), "GET");
    EXPECT_EQ(wrong.status, 405u);
    EXPECT_STREQ(wrong.allow, "POST");
    EXPECT_TRUE(Json::accept(unknown_path(std::string(5000, '\xff')).body));
}

}  // namespace
}  // namespace stagehand::control
