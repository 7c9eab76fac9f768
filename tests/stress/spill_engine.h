// SpillEngine: a training engine with an allocator of its own, which uses memory again as soon as the library allows
// it. The stream compares every restored byte with a plain reference.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include <stagehand/stagehand.h>

namespace stagehand::test {

// Memory in the order of one stream: what is given back is used by the next tensor of that size at once.
class StreamOrderedMemory {
public:
    uint8_t* take(uint64_t bytes);
    void give(uint8_t* memory, uint64_t bytes) { free_[bytes].push_back(memory); }
    uint64_t taken() const { return all_.size(); }

private:
    std::vector<std::unique_ptr<uint8_t[]>> all_;
    std::map<uint64_t, std::vector<uint8_t*>> free_;
};

class SpillEngine {
public:
    SpillEngine(sh_device* device, const sh_spiller_options& options, uint64_t seed);
    ~SpillEngine();
    SpillEngine(const SpillEngine&) = delete;
    SpillEngine& operator=(const SpillEngine&) = delete;

    // A forward that saves tensors, and a backward that restores them.
    void step(uint64_t tensors);
    // Ends tickets that steps have left over, and waits for the stream.
    void finish();
    void trim();

    uint64_t compared() const { return compared_; }
    uint64_t wrong() const { return wrong_; }
    sh_spiller_stats stats() const;

private:
    struct Tensor {
        uint64_t seed = 0;
        uint64_t bytes = 0;
        uint8_t* memory = nullptr;    // of the engine, until the library names the ticket
        uint8_t* prefetch = nullptr;  // given for a prefetch
        sh_ticket ticket = 0;         // 0: it has ended
    };

    void launch(void (*work)(void*), void* argument);
    void write(uint8_t* memory, uint64_t bytes, uint64_t seed);
    void compare(const uint8_t* memory, uint64_t bytes, uint64_t seed);
    void save(uint64_t bytes, uint64_t key);
    void collect(uint32_t flags);
    void prefetch();
    void use(Tensor& tensor);
    void end(Tensor& tensor);
    Tensor* find(sh_ticket ticket);
    uint64_t random(uint64_t below) { return std::uniform_int_distribution<uint64_t>(0, below - 1)(random_); }

    sh_device* const device_;
    sh_stream stream_ = 0;
    sh_spiller* spiller_ = nullptr;
    StreamOrderedMemory memory_;
    std::mt19937_64 random_;
    std::vector<std::unique_ptr<Tensor>> tensors_;
    std::vector<std::unique_ptr<Tensor>> kept_on_;  // of earlier steps
    uint64_t next_seed_ = 1;
    uint64_t number_ = 0;
    std::atomic<uint64_t> compared_{0}, wrong_{0};
};

}  // namespace stagehand::test
