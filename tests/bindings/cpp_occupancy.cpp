// The owners of occupancy.hpp: memory leaves the device and comes back, allocations end by scope, and forbidden uses
// throw an exception. Device memory of the host's backend is memory of the process.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <stagehand/stagehand.hpp>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "owners.hpp"

namespace {

namespace sh = stagehand;

static_assert(!std::is_copy_constructible<sh::PauseCallbacks>::value &&
                  std::is_nothrow_move_constructible<sh::PauseCallbacks>::value,
              "");
static_assert(!std::is_copy_constructible<sh::Allocation>::value && !std::is_copy_assignable<sh::Allocation>::value,
              "");

constexpr std::uint64_t kMiB = std::uint64_t(1) << 20;

unsigned char* bytes_of(const sh::Allocation& memory) {
    return reinterpret_cast<unsigned char*>(static_cast<std::uintptr_t>(memory.address()));
}

bool is_all(const sh::Allocation& memory, int value) {
    for (std::uint64_t i = 0; i < memory.size(); ++i) {
        if (bytes_of(memory)[i] != value) return false;
    }
    return memory.size() != 0;
}

void memory_leaves_and_comes_back(sh::Device& device) {
    const sh::Allocation weights(device, 4 * kMiB, "weights"), cache(device, 2 * kMiB, "cache", SH_CONTENTS_ZERO);
    const std::uint64_t address = weights.address();
    std::memset(bytes_of(weights), 7, weights.size());
    std::memset(bytes_of(cache), 8, cache.size());
    const std::uint64_t used = device.memory().used_bytes;
    const sh_occupancy_change gone = device.pause();
    CHECK(gone.tag_count == 2 && gone.device_bytes == 6 * kMiB && gone.copied_bytes == 4 * kMiB);
    CHECK(device.occupancy().state == SH_OCCUPANCY_RELEASED && device.memory().used_bytes == used - 6 * kMiB);
    CHECK(device.occupancy("weights").staged_bytes == 4 * kMiB && device.occupancy("cache").staged_bytes == 0);
    CHECK(device.resume().device_bytes == 6 * kMiB);
    CHECK(weights.address() == address && is_all(weights, 7) && is_all(cache, 0));
    CHECK(device.trim_occupancy() == 4 * kMiB && device.trim_occupancy() == 0);
}

void tags_are_paused_one_by_one(sh::Device& device) {
    const sh::Allocation weights(device, 2 * kMiB, "weights"), cache(device, 2 * kMiB, "cache", SH_CONTENTS_DROP);
    const std::vector<const char*> one = {"weights"};
    CHECK(device.pause(one, SH_CONTENTS_ZERO).copied_bytes == 0);
    CHECK(device.occupancy().state == SH_OCCUPANCY_MIXED && device.occupancy("cache").state == SH_OCCUPANCY_RUNNING);
    CHECK(status_of([&] { device.pause(one); }) == SH_ERROR_INVALID_STATE);
    CHECK(device.pause(one, SH_CONTENTS_DEFAULT, SH_OCCUPANCY_REPEAT).tag_count == 0);
    CHECK(device.resume(one).tag_count == 1 && is_all(weights, 0));
    CHECK(status_of([&] { device.resume(one); }) == SH_ERROR_INVALID_STATE);
    CHECK(device.resume(one, SH_OCCUPANCY_REPEAT).tag_count == 0);
    const std::vector<const char*> none;
    CHECK(device.pause(none).tag_count == 0 && device.resume(none).tag_count == 0);
    CHECK(device.occupancy().state == SH_OCCUPANCY_RUNNING);
    std::vector<std::string> tags;
    for (const sh_occupancy_info& info : device.occupancies()) tags.push_back(info.tag);
    CHECK((tags == std::vector<std::string>{"cache", "weights"}));
}

void allocations_end_by_scope(sh::Device& device) {
    const std::uint64_t before = device.occupancy().allocations;
    const auto added = [&] { return device.occupancy().allocations - before; };
    {
        sh::Allocation memory(device, 100);
        CHECK(memory.size() == 100 && added() == 1 && device.occupancy("default").bytes == 100);
        sh::Allocation moved = std::move(memory);
        CHECK(memory.address() == 0 && memory.size() == 0 && moved.size() == 100 && added() == 1);
        sh::Allocation other(device, 200);
        other = std::move(moved);
        CHECK(moved.address() == 0 && other.size() == 100 && added() == 1);
        sh::Allocation& same = other;
        other = std::move(same);
        CHECK(other.size() == 100 && added() == 1);
        other.free();
        CHECK(other.address() == 0 && added() == 0);
        other.free();
        sh::Allocation given(device, 300);
        const std::uint64_t address = given.release();
        CHECK(added() == 1 && sh_free(device.get(), address) == SH_OK);
    }
    CHECK(added() == 0);
}

void allocations_may_end_while_they_are_away(sh::Device& device) {
    {
        const sh::Allocation memory(device, 2 * kMiB, "away");
        device.pause(std::vector<const char*>{"away"});
        CHECK(status_of([&] { sh::Allocation none(device, 1, "away"); }) == SH_ERROR_INVALID_STATE);
    }
    CHECK(device.occupancy("away").allocations == 0 && device.occupancy("away").staged_bytes == 0);
    device.resume();
}

void contents_of_a_format_cross_the_link_packed(sh::Device& device) {
    const sh::Allocation weights(device, 4 * kMiB, "weights", SH_CONTENTS_DEFAULT, 0, SH_FORMAT_BF16);
    const sh::Allocation plain(device, 2 * kMiB, "plain");
    std::memset(bytes_of(weights), 7, weights.size());
    std::memset(bytes_of(plain), 8, plain.size());
    CHECK(device.pause().packed_bytes == 4 * kMiB);
    CHECK(device.resume().packed_bytes == 4 * kMiB);
    CHECK(bytes_of(weights)[4 * kMiB - 1] == 7 && bytes_of(plain)[0] == 8);
}

void what_has_not_changed_and_what_is_unused_is_not_copied(sh::Device& device) {
    const sh::Allocation weights(device, 6 * kMiB, "weights");
    const sh::Allocation fixed(device, 2 * kMiB, "fixed", SH_CONTENTS_DEFAULT, SH_ALLOC_CONST);
    std::memset(bytes_of(weights), 7, weights.size());
    std::memset(bytes_of(fixed), 8, fixed.size());
    sh_pause_options options = SH_PAUSE_OPTIONS_INIT;
    const auto cycle = [&] {
        const sh_occupancy_change gone = device.pause(options);
        device.resume();
        return gone;
    };
    CHECK(cycle().copied_bytes == 8 * kMiB);
    CHECK(cycle().unchanged_bytes == 8 * kMiB);
    bytes_of(fixed)[0] = 9;  // against the promise
    bytes_of(weights)[0] = 9;
    CHECK(cycle().copied_bytes == 2 * kMiB);
    options.flags = SH_OCCUPANCY_COPY_ALL;
    CHECK(cycle().copied_bytes == 8 * kMiB);
    const sh_memory_range unused = {weights.address(), 4 * kMiB};
    options.unused = &unused;
    options.unused_count = 1;
    CHECK(cycle().copied_bytes == 4 * kMiB);
    CHECK(device.trim_occupancy() != 0);
    options = SH_PAUSE_OPTIONS_INIT;
    options.flags = SH_OCCUPANCY_PREPARE;
    CHECK(device.pause(options).device_bytes == 0);
    options.flags = 0;
    CHECK(cycle().copied_bytes == 8 * kMiB && bytes_of(weights)[5 * kMiB] == 7);
}

void contents_can_be_read_while_they_are_away(sh::Device& device) {
    const sh::Allocation weights(device, 4 * kMiB, "weights");
    std::memset(bytes_of(weights), 7, weights.size());
    std::vector<unsigned char> read(3 * kMiB);
    device.pause();
    device.read_released(weights.address() + kMiB, read.size(), read.data());
    CHECK((read == std::vector<unsigned char>(3 * kMiB, 7)));
    device.resume();
}

void functions_are_called_before_and_after(sh::Device& device) {
    const sh::Allocation weights(device, 2 * kMiB, "weights");
    std::string calls;
    bool refuses = false;
    {
        sh::PauseCallbacks first(
            device, [&](const std::vector<std::string>& tags) { calls += "<" + tags.at(0); },
            [&](const std::vector<std::string>& tags) {
                calls += ">" + tags.at(0);
                throw 7;
            });
        sh::PauseCallbacks second(device, [&](const std::vector<std::string>&) {
            if (refuses) throw std::runtime_error("the link is busy");
            calls += "2";
        });
        sh::PauseCallbacks moved = std::move(second);
        device.pause(std::vector<const char*>{"weights"});
        device.resume();
        CHECK(calls == "<weights2>weights");
        refuses = true;
        try {
            device.pause();
            CHECK(false);
        } catch (const sh::Error& error) {
            CHECK(error.status() == SH_ERROR_CALLBACK && std::strstr(error.what(), "the link is busy"));
        }
        CHECK(device.occupancy("weights").state == SH_OCCUPANCY_RUNNING);
        sh::PauseCallbacks third(device, sh::PauseCallbacks::Function(), [&](const std::vector<std::string>&) {});
        moved = std::move(third);
        device.pause();
        device.resume();
    }
    calls.clear();
    device.pause();
    device.resume();
    CHECK(calls.empty());
}

void callbacks_end_within_a_callback(sh::Device& device) {
    const sh::Allocation weights(device, 2 * kMiB, "weights");
    static int calls = 0;
    static sh::PauseCallbacks* held = nullptr;
    held = new sh::PauseCallbacks(device, [](const std::vector<std::string>&) {
        ++calls;
        delete held;
        held = nullptr;
    });
    device.pause();
    device.resume();
    CHECK(calls == 1 && !held);
    CHECK(device.occupancy("weights").cycles >= 1);
}

}  // namespace

int main() {
    try {
        sh_device_options options = SH_DEVICE_OPTIONS_INIT;
        options.backend_options = "capacity=64MiB;poison=1";
        options.budget_bytes = 48 * kMiB;
        sh::Device device("host", options);
        memory_leaves_and_comes_back(device);
        tags_are_paused_one_by_one(device);
        allocations_end_by_scope(device);
        allocations_may_end_while_they_are_away(device);
        contents_of_a_format_cross_the_link_packed(device);
        what_has_not_changed_and_what_is_unused_is_not_copied(device);
        contents_can_be_read_while_they_are_away(device);
        functions_are_called_before_and_after(device);
        callbacks_end_within_a_callback(device);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "unexpected: %s\n", error.what());
        return 1;
    }
    return failed_checks != 0;
}
