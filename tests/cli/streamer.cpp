// An engine for tests: three models on the host device, driven by lines on standard input. The program answers each
// line by one line on standard output.
//
//     figures      what sh_device_get_memory() and sh_runtime_get_stats() say, as JSON
//     step N       each model streams N steps; then as `figures`
//     experts N    the first model has a set of six members in four slots, and makes N calls of two; then as `figures`
//     stream       models stream until the next line comes
//     stop         the end of that control
//     start PATH   sh_control_start() without a device
//
// It ends with its input.
#include <poll.h>

#include <cstdint>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <stagehand/stagehand.h>
#include <nlohmann/json.hpp>

namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t page = 4096;
constexpr std::uint64_t block_bytes = 16 * page;
constexpr int blocks = 8;

void check(sh_status status, const char* doing) {
    if (status >= 0) return;
    std::string text(sh_last_error(nullptr, 0) + 1, '\0');
    sh_last_error(text.data(), text.size());
    std::fprintf(stderr, "%s: %s\n", doing, text.c_str());
    std::exit(1);
}

class Model {
public:
    Model(sh_device* device, const char* name, std::uint64_t max_bytes) {
        sh_runtime_options options = SH_RUNTIME_OPTIONS_INIT;
        options.name = name;
        options.max_bytes = max_bytes;
        check(sh_runtime_create(device, &options, &runtime), "runtime");
        for (int i = 0; i < blocks; ++i) {
            sh_segment segment = SH_SEGMENT_INIT;
            segment.kind = SH_SOURCE_POINTER;
            segment.pointer = weights.data();
            segment.bytes = block_bytes;
            sh_block_desc desc = SH_BLOCK_DESC_INIT;
            desc.bytes = block_bytes;
            desc.segments = &segment;
            desc.segment_count = 1;
            check(sh_register_blocks(runtime, &desc, 1, &ids[i]), "blocks");
        }
    }
    ~Model() { sh_runtime_destroy(runtime); }
    Model(const Model&) = delete;
    Model& operator=(const Model&) = delete;

    void step() {
        check(sh_step_begin(runtime, nullptr), "step");
        for (const sh_block id : ids) {
            auto view = sh_sized<sh_view>();
            check(sh_acquire(runtime, id, SH_STREAM_HOST, 0, &view), "acquire");
            check(sh_release(runtime, id, SH_STREAM_HOST), "release");
        }
        check(sh_step_end(runtime), "step");
    }

    // The calls use members 0 and 1, 2 and 3, 4 and 5 in turn.
    void use_experts(std::uint32_t calls) {
        if (experts == 0) {
            sh_segment segment = SH_SEGMENT_INIT;
            segment.kind = SH_SOURCE_POINTER;
            segment.pointer = weights.data();
            segment.bytes = page;
            sh_block_desc desc = SH_BLOCK_DESC_INIT;
            desc.bytes = page;
            desc.segments = &segment;
            desc.segment_count = 1;
            const std::vector<sh_block_desc> members(6, desc);
            sh_set_options options = SH_SET_OPTIONS_INIT;
            options.call_members = 2;
            options.group_members = 2;
            options.slots = 4;
            options.name = "experts";
            sh_block ignored[6];
            check(sh_set_create(runtime, &options, members.data(), members.size(), ignored, &experts), "set");
        }
        for (std::uint32_t call = 0; call < calls; ++call) {
            const std::uint32_t chosen[] = {call % 3 * 2, call % 3 * 2 + 1};
            std::uint32_t slots[2];
            auto pool = sh_sized<sh_view>();
            check(sh_acquire_members(runtime, experts, chosen, 2, SH_STREAM_HOST, 0, &pool, slots), "experts");
            check(sh_release_members(runtime, experts, chosen, 2, SH_STREAM_HOST), "experts");
        }
    }

    Json figures() const {
        auto stats = sh_sized<sh_runtime_stats>();
        check(sh_runtime_get_stats(runtime, &stats), "statistics");
        return {{"steps", stats.steps},
                {"hits", stats.hits},
                {"misses", stats.misses},
                {"bytes_to_device", stats.bytes_to_device},
                {"host_waits", stats.host_waits},
                {"stall_ns", stats.stall_ns},
                {"resident_bytes", stats.resident_bytes},
                {"ring_bytes", stats.ring_bytes},
                {"unordered_bytes", stats.unordered_bytes},
                {"held_bytes", stats.held_bytes},
                {"share_bytes", stats.share_bytes},
                {"protected_bytes", stats.protected_bytes},
                {"reserved_bytes", stats.reserved_bytes},
                {"guest_bytes", stats.guest_bytes},
                {"given_up_bytes", stats.given_up_bytes}};
    }

    sh_runtime* runtime = nullptr;

private:
    std::vector<unsigned char> weights = std::vector<unsigned char>(block_bytes, 42);
    sh_block ids[blocks] = {};
    sh_set experts = 0;
};

Json figures(sh_device* device, const std::vector<std::unique_ptr<Model>>& models) {
    // Background work would make these figures differ from the next ones.
    for (const auto& model : models) check(sh_runtime_synchronize(model->runtime), "synchronize");
    auto memory = sh_sized<sh_memory_info>();
    check(sh_device_get_memory(device, &memory), "memory");
    Json json = {{"budget_bytes", memory.budget_bytes},     {"used_bytes", memory.used_bytes},
                 {"free_bytes", memory.free_bytes},         {"reserved_bytes", memory.reserved_bytes},
                 {"guest_bytes", memory.guest_bytes},       {"protected_bytes", memory.protected_bytes},
                 {"headroom_bytes", memory.headroom_bytes}, {"runtimes", Json::array()}};
    for (const auto& model : models) json["runtimes"].push_back(model->figures());
    return json;
}

bool line_is_there() {
    pollfd polled = {0, POLLIN, 0};
    return poll(&polled, 1, 0) != 0;
}

}  // namespace

int main() {
    sh_device_options options = SH_DEVICE_OPTIONS_INIT;
    options.budget_bytes = 128 * page;
    options.page_bytes = page;
    options.link_bytes_per_second = 100'000'000;
    options.backend_options = "capacity=4MiB;bandwidth=100MB/s";
    sh_device* device = nullptr;
    check(sh_device_open("host", &options, &device), "device");
    std::vector<std::unique_ptr<Model>> models;
    models.push_back(std::make_unique<Model>(device, "denoiser", 0));
    models.push_back(std::make_unique<Model>(device, "text \"encoder\"\x1b[31m\n", 0));
    models.push_back(std::make_unique<Model>(device, "visitor", 0));
    check(sh_reserve(models[0]->runtime, 48 * page, SH_PRIORITY_PRIMARY, nullptr), "reservation");
    sh_guest_options guest = SH_GUEST_OPTIONS_INIT;
    guest.bytes = 36 * page;
    sh_scope *scope = nullptr, *control = nullptr;
    check(sh_guest_begin(models[2]->runtime, &guest, &scope), "guest");

    Json answer = "ready";
    do {
        std::cout << answer << std::endl;
        std::string line;
        // Read by hand: what the stream buffers would be hidden from poll().
        for (char byte = 0; std::cin.rdbuf()->sgetn(&byte, 1) == 1 && byte != '\n';) line += byte;
        if (line.empty()) break;
        if (line == "figures") {
            answer = figures(device, models);
        } else if (line.rfind("step ", 0) == 0) {
            for (int i = std::stoi(line.substr(5)); i > 0; --i)
                for (const auto& model : models) model->step();
            answer = figures(device, models);
        } else if (line.rfind("experts ", 0) == 0) {
            models[0]->use_experts(static_cast<std::uint32_t>(std::stoi(line.substr(8))));
            answer = figures(device, models);
        } else if (line == "stream") {
            while (!line_is_there())
                for (const auto& model : models) model->step();
            answer = "streamed";
        } else if (line == "stop") {
            check(sh_scope_end(std::exchange(control, nullptr)), "control");
            answer = "stopped";
        } else if (line.rfind("start ", 0) == 0) {
            const std::string path = line.substr(6);
            sh_control_options at = SH_CONTROL_OPTIONS_INIT;
            at.address = path.c_str();
            check(sh_control_start(nullptr, &at, nullptr, &control), "control");
            answer = "started";
        } else {
            answer = "unknown";
        }
    } while (true);
    check(sh_scope_end(scope), "guest");
    models.clear();
    sh_device_close(device);
}
