// Members of a set, as stagehand.hpp owns them: they are released once, by whoever owns them at the end.
#include <stagehand/stagehand.hpp>

#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "owners.hpp"

namespace {

namespace sh = stagehand;

static_assert(!std::is_copy_constructible_v<sh::Members> && !std::is_copy_assignable_v<sh::Members>);
static_assert(std::is_nothrow_move_constructible_v<sh::Members> && std::is_nothrow_move_assignable_v<sh::Members>);

constexpr std::size_t kMembers = 6;
constexpr std::size_t kBytes = 5000;

class Experts {
public:
    explicit Experts(const sh::Device& device) : runtime(device), memory_(kMembers * kBytes) {
        for (std::size_t i = 0; i < memory_.size(); ++i)
            memory_[i] = static_cast<unsigned char>(i * 2654435761u >> 16 ^ i / kBytes);
        sh_set_options options = SH_SET_OPTIONS_INIT;
        options.call_members = 2;
        options.slots = 3;
        made = runtime.register_set(DescsInARow(memory_.data(), kMembers, kBytes).descs, options);
    }

    sh::Members acquire(const std::vector<std::uint32_t>& members) {
        return runtime.acquire_members(made.set, members, SH_STREAM_HOST);
    }
    bool are(const sh::Members& held, const std::vector<std::uint32_t>& members) const {
        const sh_set_info info = runtime.set_info(made.set);
        bool right = held.slots().size() == members.size() && held.size() == info.slots * info.stride;
        for (std::size_t i = 0; i < members.size() && right; ++i) {
            const auto* at = static_cast<const unsigned char*>(held.address()) + held.slots()[i] * info.stride;
            right = std::memcmp(at, memory_.data() + members[i] * kBytes, kBytes) == 0;
        }
        return right;
    }
    std::uint64_t held(std::uint32_t member) const { return runtime.block_info(made.blocks[member]).held; }

    sh::Runtime runtime;
    sh::MemberSet made;

private:
    std::vector<unsigned char> memory_;
};

void members_are_in_their_slots(Experts& experts) {
    for (std::uint32_t k = 0; k < 20; ++k) {
        const std::vector<std::uint32_t> members = {k % 6, (k + 1 + k % 3) % 6};
        CHECK(experts.are(experts.acquire(members), members));
    }
    const sh_set_info info = experts.runtime.set_info(experts.made.set);
    CHECK(info.members == kMembers && info.slots == 3 && info.uses == 40 && info.evictions > 0);
    const std::vector<std::uint32_t> next = {0, 1};
    const float chances[] = {0.5f, 1.0f};
    experts.runtime.prefetch_members(experts.made.set, next, chances);
    experts.runtime.prefetch_members(experts.made.set, next);
    CHECK(experts.are(experts.acquire({}), {}));
}

void members_are_released_once(Experts& experts) {
    sh::Members first = experts.acquire({0, 1, 0});
    CHECK(experts.held(0) == 2 && experts.held(1) == 1);
    sh::Members second = std::move(first);
    CHECK(experts.are(second, {0, 1, 0}) && experts.held(0) == 2);
    first.release();  // holds nothing
    CHECK(experts.held(0) == 2);
    first = experts.acquire({2});
    CHECK(experts.are(first, {2}));
    second = std::move(first);
    CHECK(experts.are(second, {2}) && experts.held(0) == 0 && experts.held(1) == 0 && experts.held(2) == 1);
    sh::Members& same = second;
    second = std::move(same);
    CHECK(experts.held(2) == 1);
    second.release();
    second.release();
    CHECK(experts.held(2) == 0);
    try {
        const sh::Members held = experts.acquire({3});
        CHECK(experts.held(3) == 1);
        throw std::runtime_error("an engine fails");
    } catch (const std::runtime_error&) {
    }
    CHECK(experts.held(3) == 0);
}

void refused_calls_hold_nothing(Experts& experts) {
    const sh_set set = experts.made.set;
    CHECK(status_of([&] { experts.acquire({0, 1, 2, 3}); }) == SH_ERROR_BUDGET);
    {
        const sh::Members held = experts.acquire({0, 1, 2});
        CHECK(status_of([&] { experts.acquire({3}); }) == SH_ERROR_HELD);
        CHECK(status_of([&] { experts.runtime.unregister_set(set); }) == SH_ERROR_INVALID_STATE);
    }
    for (std::uint32_t member = 0; member < kMembers; ++member) CHECK(experts.held(member) == 0);
    experts.runtime.unregister_set(set);
    CHECK(status_of([&] { experts.acquire({0}); }) == SH_ERROR_INVALID_HANDLE);
    CHECK(status_of([&] { experts.runtime.set_info(set); }) == SH_ERROR_INVALID_HANDLE);
}

}  // namespace

int main() {
    try {
        sh_device_options options = SH_DEVICE_OPTIONS_INIT;
        options.page_bytes = 4096;
        options.budget_bytes = 64 * 1024;
        const sh::Device device("host", options);
        Experts experts(device);
        members_are_in_their_slots(experts);
        members_are_released_once(experts);
        refused_calls_hold_nothing(experts);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "unexpected: %s\n", error.what());
        return 1;
    }
    return failed_checks != 0;
}
