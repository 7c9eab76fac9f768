// Weights: a runtime of a scenario, with the expected contents of each block.
#pragma once

#include "matrix.h"

namespace stagehand::test {

class Weights {
public:
    // Blocks that are packed hold weights that can be packed, and the memory of their sources is given up if it may be.
    // `set`: the blocks are the members of such a set. Null: of none.
    Weights(Run& run, const std::vector<BlockSpec>& specs, sh_runtime_options options = SH_RUNTIME_OPTIONS_INIT,
            const sh_set_options* set = nullptr);
    ~Weights();
    Weights(const Weights&) = delete;
    Weights& operator=(const Weights&) = delete;

    sh_runtime* get() const { return runtime_; }
    const sh_block* ids() const { return ids_.data(); }
    size_t size() const { return ids_.size(); }
    const std::vector<uint8_t>& truth(size_t i) const { return *truth_[i]; }
    bool is_mutable(size_t i) const { return specs_[i].flags & SH_BLOCK_MUTABLE; }

    void schedule(size_t count);  // the first blocks, in their order
    // Compares a block where it is used, and changes it if it is mutable and used on the calling thread.
    void use(size_t i, sh_stream stream = SH_STREAM_HOST);
    void compare(size_t i, const sh_view& view, sh_stream stream);
    // Compares members in their slots.
    void use_members(const std::vector<uint32_t>& members, sh_stream stream);
    sh_set set() const { return set_; }
    void release(size_t i, sh_stream stream);
    // Uses all blocks, the mutable ones on the calling thread. A kind of null has no name.
    void step(sh_stream stream = SH_STREAM_HOST, const char* kind = nullptr);
    // New contents for a source, in memory of its own.
    void replace(size_t i);
    void write_back(size_t i);
    void write_back();

    uint64_t wrong() const { return wrong_; }
    void forget_wrong() { wrong_ = 0; }

private:
    std::vector<uint8_t> contents(size_t i, uint64_t version) const;
    std::vector<sh_segment> segments(size_t i);

    Run& run_;
    const std::vector<BlockSpec> specs_;
    std::vector<std::unique_ptr<Source>> sources_, before_;
    std::vector<std::shared_ptr<const std::vector<uint8_t>>> truth_;
    std::vector<sh_block> ids_;
    sh_runtime* runtime_ = nullptr;
    sh_set set_ = 0;
    uint64_t version_ = 0;
    std::atomic<uint64_t> wrong_{0};
};

}  // namespace stagehand::test
