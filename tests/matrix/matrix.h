// The fault matrix: each scenario runs again and again, and each time another call into the backend fails, or another
// allocation of the library.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine.h"
#include "failing_allocations.h"

namespace stagehand::test {

// How long the failures of a cell go on.
enum class Lasts {
    never,
    once,
    in_a_row,        // three calls, or thirty allocations
    until_given_up,  // until the engine has tried a call often enough; everything works after that
    for_ever,        // the engine closes everything at the first failure
};
enum class Fails { nothing, device, helper, copies_of_helper, allocation, later_allocation };

// Where failures lie, for one run of a scenario.
struct Cell {
    Fails fails = Fails::nothing;
    Lasts lasts = Lasts::never;
    bool delayed = false;
    uint64_t k = 0;  // the call that fails first, counted from the opening of the device; also the seed of the delays
    AllocationFailure allocation = {};
};

// The engine ends here: a runtime or the device is lost, or nothing works any more.
struct Ended {};

// One run of a scenario. It makes calls until they work, and notes forbidden results as failures of the test.
class Run {
public:
    Run(const Cell& cell, AllocationProgress& progress, const std::string& folder);
    ~Run();
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;

    // Opens the device, and its helper if it has one. Returns false if the open failed as planned.
    bool open(DeviceSettings settings, bool helped);
    TestDevice& test_device() { return *device_; }
    sh_device* device() { return device_->get(); }
    const std::string& folder() const { return folder_; }
    sh_stream stream();  // a new one
    // Memory that copies of a device that has failed may still use.
    uint8_t* memory(uint64_t bytes, uint8_t value = 0);

    // Tries a call until it succeeds. `done`: the status of a repeated call whose first try took effect although it
    // failed. Ends the run if a runtime is lost, or if nothing works for ever.
    void attempt(const char* name, const std::function<sh_status()>& call, sh_status done = SH_OK);
    // For a call that is not made again as it is. Returns false if it failed in a way that is allowed.
    bool once(const char* name, sh_status status);
    // For what has no text and no status.
    void try_until(const char* name, const std::function<bool()>& works);

    uint64_t failures() const;  // so far
    uint64_t calls(const char* name) const;
    bool helper_fails() const { return cell_.fails == Fails::helper || cell_.fails == Fails::copies_of_helper; }
    bool fails_often() const { return cell_.lasts > Lasts::once; }
    bool allocations_fail() const { return cell_.fails >= Fails::allocation; }
    // Whether a call has failed since the last question because of the helper: what it brought may be wrong.
    bool told_of_helper() { return std::exchange(told_, false); }

    void also_allowed(sh_status status) { also_allowed_.push_back(status); }  // as an answer to failures
    void settle();                                                            // all streams, whatever the calls say
    // Ends the failures, and looks at what is left.
    void finish();

private:
    bool allowed(sh_status status) const;
    void give_up(const char* name);
    std::string plan(bool fails) const;  // of a device, in its options

    const Cell cell_;
    AllocationProgress& progress_;
    const std::string folder_;
    std::vector<std::unique_ptr<std::vector<uint8_t>>> memory_;
    std::unique_ptr<TestDevice> helper_, device_;
    std::vector<sh_stream> streams_;
    std::vector<sh_status> also_allowed_;
    uint64_t budget_bytes_ = 0;  // the highest
    bool told_ = false, healed_ = false, lost_ = false;
};

// Makes a call of the interface until it works.
#define TRY(run, function, ...)               \
    (run).attempt(#function, [&] {            \
        const InTheLibrary inside(#function); \
        return function(__VA_ARGS__);         \
    })
// For a call that says `done` if its first try took effect although it failed.
#define TRY_OR(run, done, function, ...)          \
    (run).attempt(                                \
        #function,                                \
        [&] {                                     \
            const InTheLibrary inside(#function); \
            return function(__VA_ARGS__);         \
        },                                        \
        done)
// Makes a call of the interface once.
#define CALL(function, ...)                   \
    [&] {                                     \
        const InTheLibrary inside(#function); \
        return function(__VA_ARGS__);         \
    }()

struct Scenario {
    const char* name;
    void (*work)(Run&);
    DeviceSettings settings = {};
    bool helped = false;
    bool needs_pages = false;
    bool on_gpus = false;     // it reads memory by DeviceBytes alone
    bool allocations = true;  // they fail, too
    uint64_t cost = 1;        // of a run, so that a longer one has fewer cells
};
// What the files of scenarios hold.
std::vector<Scenario> weight_scenarios();
std::vector<Scenario> memory_scenarios();
std::vector<Scenario> service_scenarios();

}  // namespace stagehand::test
