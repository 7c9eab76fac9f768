// The calls of control.h. Requests come in meanwhile.
#include <gtest/gtest.h>

#include "engine.h"
#include "every_call.h"
#include "http_client.h"

namespace stagehand::test {

// Has a client release and resume memory. Where the plugin is not built, the calls say so.
bool EveryCall::be_controlled() {
    sh_control* control = nullptr;
    sh_control_options options = SH_CONTROL_OPTIONS_INIT;
    const std::string path = folder_ + "/control";
    options.address = path.c_str();
    options.token = "a-token-for-tests";
    if (!STAGEHAND_HAVE_CONTROL) {
        (void)CALL(sh_control_get_info, nullptr, nullptr);
        (void)CALL(sh_control_stop, nullptr);
        return CALL(sh_control_start, device_, &options, &control) != SH_OK;
    }
    if (!ATTEMPT(sh_control_start, device_, &options, &control)) return false;
    uint64_t address = 0;
    bool well = ATTEMPT(sh_alloc, device_, kPage, nullptr, &address);
    const int can_pause = devices_without_pages() ? 500 : 200;
    const struct {
        const char* method;
        const char* target;
        const char* body;
        int status;
    } requests[] = {{"GET", "/memory", "", 200},
                    {"POST", "/release_memory_occupation", R"({"tags": ["default"], "if_needed": true})", can_pause},
                    {"GET", "/metrics", "", 200},
                    {"POST", "/wake_up?tags=default", "", 200},
                    {"GET", "/is_sleeping", "", 200},
                    {"POST", "/sleep?level=9", "", 400},
                    {"GET", "/nowhere", "", 404}};
    for (const auto& request : requests) {
        int status = 0;
        for (int k = 0; well && k < attempts_ && status != request.status; k++) {
            progress_.call = request.target;
            status = http(path, request.method, request.target, request.body, options.token).status;
        }
        well = well && status == request.status;
        EXPECT_TRUE(well) << request.target << ": " << status;
    }
    sh_control_info info = SH_CONTROL_INFO_INIT;
    well = well && ATTEMPT(sh_control_get_info, control, &info);
    well = well && ATTEMPT(sh_free, device_, address);
    return attempt(
               "sh_control_stop", [&] { return sh_control_stop(control); }, SH_ERROR_INVALID_HANDLE) &&
           well;
}

}  // namespace stagehand::test
