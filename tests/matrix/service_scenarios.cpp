// What surrounds the movement of bytes: telemetry, the control by HTTP, plans, and functions on their own.
#include <cstring>

#include "../stress/http_client.h"
#include "../unit/codec/weights.h"
#include "../unit/core/socket_client.h"
#include "codec/frame.h"
#include "weights.h"

namespace stagehand::test {
namespace {

// Needs no device.
void functions(Run& run) {
    static const std::vector<uint8_t> plain = codec::test::weights(codec::FloatFormat::bf16, 2500, 1);
    static const std::vector<uint8_t> packed = [] {
        std::vector<uint8_t> frame;
        EXPECT_TRUE(codec::pack_frame(codec::FloatFormat::bf16, plain.data(), plain.size(), 1, &frame).ok());
        return frame;
    }();
    CALL(sh_version);
    CALL(sh_status_string, SH_OK);
    CALL(sh_last_error, nullptr, 0);
    uint8_t found[300];
    TRY(run, sh_unpack, packed.data(), packed.size(), 100, sizeof found, found);
    EXPECT_EQ(std::memcmp(found, plain.data() + 100, sizeof found), 0);
    sh_backend_info backends[8];
    for (sh_backend_info& info : backends) info = sh_sized<sh_backend_info>();
    uint64_t count = 0, now = 0;
    TRY(run, sh_backend_list, backends, std::size(backends), &count);
    auto caps = sh_sized<sh_device_caps>();
    TRY(run, sh_device_get_caps, run.device(), &caps);
    TRY(run, sh_device_get_clock, run.device(), &now);
    // Another device, which is opened and closed.
    sh_device *other = nullptr, *again = nullptr;
    TRY(run, sh_device_open, "host:2", nullptr, &other);
    TRY(run, sh_device_open, "host:2", nullptr, &again);
    EXPECT_EQ(other, again);
    sh_stream stream = 0;
    TRY(run, sh_stream_create, other, &stream);
    TRY(
        run, sh_stream_launch, other, stream, [](void* value) { ++*static_cast<uint64_t*>(value); }, &now, 0);
    TRY(run, sh_stream_synchronize, other, stream);
    CALL(sh_stream_destroy, other, stream);
    void* pinned = nullptr;
    TRY(run, sh_host_alloc, other, 3 * kPage, &pinned, nullptr);
    TRY(run, sh_host_free, other, pinned);
    CALL(sh_device_close, again);
    CALL(sh_device_close, other);
    sh_activation saved[2] = {SH_ACTIVATION_INIT, SH_ACTIVATION_INIT};
    for (sh_activation& activation : saved) {
        activation.bytes = 1000;
        activation.first_use_ns = activation.last_use_ns = 2000;
    }
    sh_training_step step = SH_TRAINING_STEP_INIT;
    step.activations = saved;
    step.activation_count = 2;
    step.forward_end_ns = 1000;
    step.end_ns = 3000;
    step.target_peak_bytes = 1500;
    uint32_t fates[2];
    TRY(run, sh_plan_activations, &step, fates, nullptr);
    TRY(run, sh_simulate_activations, &step, fates, nullptr, nullptr, 0, nullptr);
}

void observe(Run& run) {
    const std::string trace = run.folder() + "/trace", steps = run.folder() + "/steps";
    TRY(
        run, sh_set_log, SH_LOG_WARNING, [](int32_t, const char*, void*) {}, nullptr);
    struct Stop {
        Run& run;
        sh_scope* trace = nullptr;
        ~Stop() {
            for (int k = 0; k < 70 && CALL(sh_scope_end, trace) == SH_ERROR_OUT_OF_HOST_MEMORY;) k++;
            ignore(CALL(sh_set_log, 0, nullptr, nullptr));
        }
    } stop{run};
    TRY(run, sh_trace_start, trace.c_str(), &stop.trace);
    Weights weights(run, equal_blocks(4, 2 * kPage));
    sh_scope* lines = nullptr;
    TRY(run, sh_telemetry_start, weights.get(), nullptr, steps.c_str(), &lines);
    sh_part_options halves = SH_PART_OPTIONS_INIT;
    weights.step();
    TRY_OR(run, SH_ERROR_INVALID_HANDLE, sh_scope_end, lines);
    const std::vector<uint8_t> bytes(3 * kPage, 7);
    sh_segment segment = SH_SEGMENT_INIT;
    segment.kind = SH_SOURCE_POINTER;
    segment.pointer = bytes.data();
    segment.bytes = bytes.size();
    sh_block_desc desc = SH_BLOCK_DESC_INIT;
    desc.bytes = bytes.size();
    desc.segments = &segment;
    desc.segment_count = 1;
    halves.unit_bytes = 1;
    halves.largest_bytes = (bytes.size() + 1) / 2;
    sh_part parts[2] = {sh_sized<sh_part>(), sh_sized<sh_part>()};
    uint64_t count = 0;
    TRY(run, sh_register_parts, weights.get(), &desc, &halves, parts, 2, &count);
    EXPECT_EQ(count, 2u);
    const sh_block ids[] = {parts[0].block, parts[1].block};
    TRY_OR(run, SH_ERROR_INVALID_HANDLE, sh_unregister_blocks, weights.get(), ids, 2);
}

// A client releases and resumes memory. Where the plugin is not built, the calls say so.
void control(Run& run) {
    sh_scope* control = nullptr;
    sh_control_options options = SH_CONTROL_OPTIONS_INIT;
    const std::string path = run.folder() + "/control";
    options.address = path.c_str();
    options.token = "a-token-for-tests";
    auto info = sh_sized<sh_control_info>();
    if (!STAGEHAND_HAVE_CONTROL) {
        EXPECT_NE(CALL(sh_control_start, run.device(), &options, &info, &control), SH_OK);
        return;
    }
    uint64_t memory = 0;
    TRY(run, sh_alloc, run.device(), kPage, nullptr, &memory);
    TRY(run, sh_control_start, run.device(), &options, &info, &control);
    try {
        const struct {
            const char *method, *target, *body;
            int status;
        } requests[] = {{"GET", "/memory", "", 200},
                        {"POST", "/release_memory_occupation", R"({"tags": ["default"], "if_needed": true})", 200},
                        {"GET", "/metrics", "", 200},
                        {"GET", "/snapshot", "", 200},
                        {"POST", "/wake_up?tags=default", "", 200},
                        {"GET", "/is_sleeping", "", 200},
                        {"POST", "/sleep?level=9", "", 400},
                        {"GET", "/nowhere", "", 404}};
        for (const auto& request : requests)
            run.try_until(request.target, [&] {
                return http(path, request.method, request.target, request.body, options.token).status == request.status;
            });
    } catch (const Ended&) {
        for (int k = 0; k < 70 && CALL(sh_scope_end, control) < 0;) k++;
        throw;
    }
    TRY_OR(run, SH_ERROR_INVALID_HANDLE, sh_scope_end, control);
    TRY_OR(run, SH_ERROR_INVALID_ARGUMENT, sh_free, run.device(), memory);
    TRY(run, sh_occupancy_trim, run.device(), nullptr);
}

}  // namespace

std::vector<Scenario> service_scenarios() {
    DeviceSettings settings;
    settings.options = "wrap=host;capacity=64MiB;poison=1";
    settings.budget_bytes = 40 * kPage;
    return {{.name = "functions", .work = functions, .settings = settings},
            {.name = "observe", .work = observe, .settings = settings},
            {.name = "control", .work = control, .settings = settings, .needs_pages = true}};
}

}  // namespace stagehand::test
