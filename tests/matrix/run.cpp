// Run: the attempts of a scenario, and what has to be true after them.
#include <algorithm>
#include <stdexcept>

#include "fault/fault.h"
#include "host/host_backend.h"
#include "matrix.h"
#include "plugin.h"

namespace stagehand::test {
namespace {

constexpr int kAttempts = 4;
constexpr uint64_t kInARow = 3;

sh_fault_counters_info counters() {
    sh_fault_counters_info counters = {sizeof counters, 0, 0, 0};
    EXPECT_EQ(FAULT(sh_fault_counters)(&counters), SH_OK);
    return counters;
}

constexpr sh_status kKinds[] = {SH_ERROR_BACKEND, SH_ERROR_OUT_OF_DEVICE_MEMORY, SH_ERROR_OUT_OF_HOST_MEMORY,
                                SH_ERROR_INVALID_HANDLE};

sh_status status_of(const Cell& cell) {
    if (cell.fails == Fails::copies_of_helper) return SH_ERROR_DEVICE_LOST;
    if (cell.lasts == Lasts::for_ever) return cell.k % 2 ? SH_ERROR_DEVICE_LOST : SH_ERROR_BACKEND;
    return cell.lasts == Lasts::once ? kKinds[cell.k % std::size(kKinds)] : SH_ERROR_BACKEND;
}

// The backend has made no more than it was asked to destroy.
void expect_all_destroyed() {
    auto* const successes = FAULT(sh_fault_success_count);
    auto* const calls = FAULT(sh_fault_call_count);
    constexpr const char* kPairs[][2] = {{"stream_create", "stream_destroy"},
                                         {"event_create", "event_destroy"},
                                         {"range_reserve", "range_free"},
                                         {"host_register", "host_unregister"}};
    for (const auto& [made, destroyed] : kPairs) EXPECT_LE(successes(made), calls(destroyed)) << made;
}

}  // namespace

Run::Run(const Cell& cell, AllocationProgress& progress, const std::string& folder)
    : cell_(cell), progress_(progress), folder_(folder) {}

Run::~Run() {
    for (const sh_stream stream : streams_) CALL(sh_stream_destroy, device_->get(), stream);
    if (cell_.lasts == Lasts::for_ever && on_host_backend()) host::wait_for_all_work();
    const bool all = device_ && (!helper_fails() || helper_);
    device_.reset();
    helper_.reset();
    // What the library cannot know to be idle, because it failed to ask again and again, it keeps.
    if (all && !fails_often() && !lost_) expect_all_destroyed();
}

std::string Run::plan(bool fails) const {
    const std::string seed = std::to_string(cell_.k);
    // A copy of which the library could not learn in several tries whether it has ended may go on beside later ones.
    // Its bytes are not used, but its memory stays. What finds races allocates, too.
    std::string plan = allocations_fail() ? ";" : fails_often() ? ";ordered=2;" : ";ordered=1;";
    if (cell_.delayed && on_host_backend()) plan += "jitter_us=300;jitter_seed=" + seed + ";";
    if (cell_.delayed) plan += "delay_us=60;delay_seed=" + seed + ";";
    if (!fails || cell_.lasts == Lasts::never || allocations_fail()) return plan;
    const uint64_t count = cell_.lasts == Lasts::once ? 1 : cell_.lasts == Lasts::in_a_row ? kInARow : 0;
    if (cell_.fails == Fails::copies_of_helper) plan += "late=1;fail_call=copy_to_device;";
    return plan + "fail_at=" + seed + ";fail_count=" + std::to_string(count) +
           ";fail_status=" + std::to_string(status_of(cell_));
}

bool Run::open(DeviceSettings settings, bool helped) {
    budget_bytes_ = settings.budget_bytes;
    const auto open = [&](uint32_t number, const std::string& planned, bool helper) {
        DeviceSettings own = settings;
        own.name = "fault:" + std::to_string(number);
        if (helper) own.budget_bytes = 128 << 20;
        if (helped && !helper) own.helpers = "fault:1";
        const size_t wrap = own.options.find("wrap=host");
        if (helper) own.options.replace(wrap, 9, "wrap=host:1");
        own.options += planned;
        return std::make_unique<TestDevice>(own);
    };
    try {  // the controls of the plugin are those of the device that was opened last
        if (helped && !helper_fails()) helper_ = open(1, plan(false), true);
        device_ = open(0, plan(!helper_fails()), false);
        if (helped && helper_fails()) helper_ = open(1, plan(true), true);
        return true;
    } catch (const std::exception& error) {
        EXPECT_TRUE(allocations_fail() || failures()) << error.what();
        return false;
    }
}

uint64_t Run::failures() const { return allocations_fail() ? progress_.failed.load() : counters().failures; }

uint64_t Run::calls(const char* name) const { return FAULT(sh_fault_call_count)(name); }

sh_stream Run::stream() {
    sh_stream stream = 0;
    TRY(*this, sh_stream_create, device(), &stream);
    streams_.push_back(stream);
    return stream;
}

uint8_t* Run::memory(uint64_t bytes, uint8_t value) {
    return memory_.emplace_back(std::make_unique<std::vector<uint8_t>>(bytes, value))->data();
}

bool Run::allowed(sh_status status) const {
    if (status == SH_ERROR_RUNTIME_LOST || status == SH_ERROR_DEVICE_LOST) return true;
    if (std::find(also_allowed_.begin(), also_allowed_.end(), status) != also_allowed_.end()) return true;
    if (told_ && helper_) return status == SH_ERROR_BACKEND;
    if (status == SH_ERROR_BUDGET && status_of(cell_) == SH_ERROR_OUT_OF_DEVICE_MEMORY) return true;
    return status == (allocations_fail() ? SH_ERROR_OUT_OF_HOST_MEMORY : status_of(cell_));
}

bool Run::once(const char* name, sh_status status) {
    if (status >= 0) return true;
    EXPECT_GT(failures(), 0u) << name << ": " << why();
    // Copies that nobody can wait for may still use memory whose bytes nobody uses. ThreadSanitizer knows nothing of
    // that.
    if (kOneThreadOnly && fails_often()) host::wait_for_all_work();
    told_ = told_ || why().find("a device that helps has failed") != std::string::npos ||
            why().find("which helps") != std::string::npos;
    // Memory that the library cannot know to be idle, because it asked in vain again and again, comes back when the
    // device closes, and may be missing until then.
    if (fails_often() && (status == SH_ERROR_BUDGET || status == SH_ERROR_BUSY)) throw Ended();
    EXPECT_TRUE(allowed(status)) << name << ": unexpected status " << sh_status_string(status) << ", " << why();
    EXPECT_FALSE(why().empty()) << name;
    lost_ = lost_ || status == SH_ERROR_RUNTIME_LOST || (status == SH_ERROR_DEVICE_LOST && !told_);
    if (lost_ || cell_.lasts == Lasts::for_ever || testing::Test::HasFailure()) give_up(name);
    return false;
}

void Run::attempt(const char* name, const std::function<sh_status()>& call, sh_status done) {
    for (int k = 0; k < 2 * kAttempts + (allocations_fail() ? 60 : 0); k++) {
        const sh_status status = call();
        if ((k > 0 && status == done) || once(name, status)) return;
        if (k == kAttempts && cell_.lasts == Lasts::until_given_up && !std::exchange(healed_, true)) {
            FAULT(sh_fault_disarm)();
            k = 0;
        }
    }
    ADD_FAILURE() << name << " does not recover: " << why();
    throw Ended();
}

void Run::try_until(const char* name, const std::function<bool()>& works) {
    for (int k = 0; k < 2 * kAttempts + (allocations_fail() ? 60 : 0); k++) {
        if (works()) return;
        EXPECT_GT(failures(), 0u) << name;
        if (lost_ || cell_.lasts == Lasts::for_ever || testing::Test::HasFailure()) give_up(name);
        if (k == kAttempts && cell_.lasts == Lasts::until_given_up && !std::exchange(healed_, true))
            FAULT(sh_fault_disarm)(), k = 0;
    }
    ADD_FAILURE() << name << " does not recover";
    throw Ended();
}

// A helper that has failed for ever is left out, so the engine goes on without it.
void Run::give_up(const char* name) {
    if (cell_.fails == Fails::copies_of_helper && !lost_ && !testing::Test::HasFailure()) return;
    progress_.call = name;
    progress_.lost += lost_;
    throw Ended();
}

void Run::settle() {
    for (const sh_stream stream : streams_)
        for (int k = 0; k < kAttempts && sh_stream_synchronize(device(), stream) != SH_OK;) k++;
    if (on_host_backend()) host::wait_for_all_work();
    device_->bytes().settle();
}

void Run::finish() {
    progress_.met_failures += failures() > 0;
    progress_.calls = cell_.fails == Fails::copies_of_helper ? calls("copy_to_device") : counters().calls;
    if (cell_.lasts == Lasts::for_ever || lost_ || !device_ || testing::Test::HasFailure()) return;
    auto memory = sh_sized<sh_memory_info>();
    TRY(*this, sh_device_get_memory, device(), &memory);
    EXPECT_EQ(memory.runtime_count, 0u);
    EXPECT_LE(memory.peak_bytes, budget_bytes_);
    if (fails_often()) return;  // what could not be given back comes back when the device closes
    EXPECT_EQ(memory.used_bytes, 0u);
    for (const host::MemoryStatistics& host : host::all_memory_statistics()) EXPECT_EQ(host.pages, 0u);
}

}  // namespace stagehand::test
