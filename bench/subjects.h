// Subjects: devices that help one another, pinned memory with random bytes that all of them copy from, and the speeds
// of raw copies.
#pragma once

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/device/device.h"
#include "core/device/pool_memory.h"
#include "measure.h"

namespace bench {

using stagehand::Status;

constexpr uint64_t kMiB = 1 << 20;

inline void check_status(const Status& status, const char* call) {
    if (status.ok()) return;
    std::fprintf(stderr, "%s: %s\n", call, status.text());
    std::exit(1);
}
#define CHECK_STATUS(call) check_status((call), #call)

inline bool on_host(const std::string& name) { return name.rfind("host", 0) == 0; }

// Opens the device until the end. A host device is paced.
inline sh_device* open(const std::string& name, uint64_t budget, const std::string& helpers) {
    sh_device_options options = SH_DEVICE_OPTIONS_INIT;
    options.budget_bytes = budget;
    options.page_bytes = on_host(name) ? 64 << 10 : 2 << 20;
    const std::string backend = "bandwidth=1GB/s;capacity=" + std::to_string(2 * budget);
    if (on_host(name)) options.backend_options = backend.c_str();
    sh_helper_options others = SH_HELPER_OPTIONS_INIT;
    others.devices = helpers.c_str();
    options.helpers = &others;
    sh_device* device = nullptr;
    CHECK(sh_device_open(name.c_str(), &options, &device));
    return device;
}

// Raw copies from pinned memory, of the same size for each device, all at once, and as many to `back`, if that is not
// null. Bytes per nanosecond together, in one direction.
inline double raw_speed(const std::vector<std::string>& names, const char* memory, uint64_t bytes,
                        char* back = nullptr) {
    const uint64_t piece = on_host(names[0]) ? 4 * kMiB : 64 * kMiB, pieces = bytes / piece / names.size();
    struct Target {
        std::shared_ptr<stagehand::core::Device> device;
        std::unique_ptr<stagehand::core::PoolMemory> to;
        sh_stream stream = 0, back = 0;
    };
    std::vector<Target> targets(names.size());
    for (size_t i = 0; i < names.size(); i++) {
        Target& target = targets[i];
        CHECK_STATUS(stagehand::core::Device::open(names[i].c_str(), {}, &target.device));
        target.to = std::make_unique<stagehand::core::PoolMemory>(target.device->backend(), target.device->pool());
        CHECK_STATUS(target.to->take(piece / target.device->page_bytes()));
        for (sh_stream* const stream : {&target.stream, &target.back})
            CHECK_STATUS(target.device->backend().stream_create(stream));
    }
    std::vector<double> took;
    for (int round = 0; round < 4; round++) {
        took.push_back(seconds([&] {
            for (uint64_t k = 0; k < pieces; k++)
                for (size_t i = 0; i < targets.size(); i++) {
                    const Target& target = targets[i];
                    stagehand::BackendDevice& backend = target.device->backend();
                    const uint64_t at = (i * pieces + k) * piece;
                    CHECK_STATUS(backend.copy_to_device(target.stream, target.to->address(), memory + at, piece));
                    if (back) CHECK_STATUS(backend.copy_to_host(target.back, back + at, target.to->address(), piece));
                }
            for (const Target& target : targets)
                for (const sh_stream stream : {target.stream, target.back})
                    CHECK_STATUS(target.device->backend().stream_synchronize(stream));
        }));
    }
    for (Target& target : targets) {
        for (const sh_stream stream : {target.stream, target.back})
            CHECK_STATUS(target.device->backend().stream_destroy(stream));
        CHECK_STATUS(target.to->free());
        CHECK_STATUS(target.device->pool().trim(0));
    }
    return static_cast<double>(pieces * piece * targets.size()) / *std::min_element(took.begin(), took.end()) / 1e9;
}

// Random bytes in memory that all devices copy from, and the devices.
struct Subjects {
    std::vector<std::string> names;
    std::string helpers;  // all but the first
    uint64_t scale = 1, total = 0;
    std::vector<sh_device*> open_helpers;
    char* memory = nullptr;
    std::vector<double> links;  // raw copies to each device
    double sum = 0;             // and to all at once

    explicit Subjects(const std::vector<std::string>& devices) : names(devices) {
        scale = on_host(names[0]) ? 32 : 1;
        total = 32 * 416 * kMiB / scale;
        for (size_t i = 1; i < names.size(); i++) {
            helpers += (i > 1 ? "," : "") + names[i];
            open_helpers.push_back(open(names[i], total, ""));
        }
        memory = allocate(total);
        std::mt19937_64 random(1);
        for (uint64_t at = 0; at < total; at += 8) {
            const uint64_t value = random();
            std::memcpy(memory + at, &value, 8);
        }
        sh_device* const device = open(names[0], total, "");
        for (const std::string& name : names) links.push_back(raw_speed({name}, memory, total / 4));
        sum = raw_speed(names, memory, total);
        sh_device_close(device);
        std::printf("raw copies, GB/s:");
        for (size_t i = 0; i < names.size(); i++) std::printf(" %s %.1f", names[i].c_str(), links[i]);
        std::printf(", all at once %.1f\n", sum);
    }
    ~Subjects() {
        for (sh_device* one : open_helpers) sh_device_close(one);
    }
    Subjects(const Subjects&) = delete;
    Subjects& operator=(const Subjects&) = delete;

    // Pinned memory, which goes back with the first helper.
    char* allocate(uint64_t bytes) const {
        void* pinned = nullptr;
        CHECK(sh_host_alloc(open_helpers[0], bytes, &pinned, nullptr));
        return static_cast<char*>(pinned);
    }
};

}  // namespace bench
