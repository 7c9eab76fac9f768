// EveryCall: an engine that makes every call of the interface. It tries failed calls again, and notes forbidden results
// as failures of the test.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include <stagehand/stagehand.h>

#include "failing_allocations.h"

extern "C" typedef struct sh_test_graph sh_test_graph;

namespace stagehand::test {

class EveryCall {
public:
    // Makes its files in `folder`. `attempts` is the number of tries after which a call has failed for good.
    EveryCall(AllocationProgress& progress, std::string folder, int attempts);
    ~EveryCall();
    EveryCall(const EveryCall&) = delete;
    EveryCall& operator=(const EveryCall&) = delete;

    // Everything is closed when this returns.
    void run();

    bool lost() const { return lost_; }  // a runtime was
    const std::set<std::string>& called() const { return called_; }

private:
    struct Block {
        uint64_t bytes = 0;
        uint32_t kind = 0;
        uint32_t flags = 0;
        bool pinned = false;
        uint8_t* memory = nullptr;        // of the source
        std::vector<uint8_t> truth = {};  // what a view has to show
        sh_block id = 0;
    };
    struct Check {
        const uint8_t* at = nullptr;
        const Block* block = nullptr;
        std::atomic<uint64_t>* wrong = nullptr;
    };
    using Model = std::vector<Block>;

    // Calls.
    template <class Call>
    auto within(const char* name, Call&& call) {
        called_.insert(name);
        progress_.call = name;
        const InTheLibrary inside;
        return call();
    }
    bool attempt(const char* name, const std::function<sh_status()>& call, sh_status done = SH_OK);
    bool told(const char* name, sh_status status);

    // What an engine does.
    void call_what_needs_nothing();
    bool open();
    bool make_sources(Model& model);
    bool register_blocks(sh_runtime* runtime, Model& model);
    bool register_halves(sh_runtime* runtime, const sh_block_desc& desc);
    bool schedule(sh_runtime* runtime, const Model& model);
    bool steps();
    bool step(int number);
    bool use(Block& block, sh_stream stream, bool change);
    bool use_pair(sh_stream stream);
    bool release(sh_runtime* runtime, const Block& block, sh_stream stream);
    bool still_held(sh_runtime* runtime, const Block& block, bool* out_held);
    bool compare(const Block& block, const void* at, sh_stream stream);
    bool change_contents();
    bool stay();
    bool have_a_guest();
    bool graphs();
    bool capture();
    bool capture_all();
    bool launch();
    void let_go_of_graph();
    bool spill_and_restore();
    bool pause_and_resume();
    bool be_controlled();
    bool plan_a_step();
    bool bring_back(const sh_ticket* tickets, const std::vector<uint8_t>* saved, std::vector<uint8_t>* restored,
                    size_t count);
    bool ask_monitor();
    bool end();
    void close();
    void free_sources(Model& model);

    AllocationProgress& progress_;
    const std::string folder_;
    const int attempts_;
    bool lost_ = false;
    std::set<std::string> called_;

    sh_device *device_ = nullptr, *again_ = nullptr;
    sh_stream stream_ = 0, other_ = 0;
    sh_runtime *model_ = nullptr, *pinned_ = nullptr, *guest_ = nullptr;
    sh_scope *kept_ = nullptr, *visit_ = nullptr;
    sh_graph* graph_ = nullptr;
    sh_spiller* spiller_ = nullptr;
    sh_test_graph* native_ = nullptr;
    Model blocks_, captured_, guests_;
    size_t ordered_ = 0;  // the first blocks of blocks_; the others are outside the order
    int file_ = -1;
    std::vector<Check> checks_;
    size_t checks_made_ = 0;
    std::atomic<uint64_t> wrong_{0};
    uint8_t version_ = 0;
};

#define ATTEMPT(function, ...) attempt(#function, [&] { return function(__VA_ARGS__); })
#define CALL(function, ...) within(#function, [&] { return function(__VA_ARGS__); })

}  // namespace stagehand::test
