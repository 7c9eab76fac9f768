// ChunkedMap: values by 64-bit keys that come in runs of neighbours. One hash lookup serves 64 keys, so that walking
// page tables of millions of entries is cheap.
#pragma once

#include <cstdint>
#include <unordered_map>

namespace stagehand::support {

// Not thread-safe, not even for readers, because the map remembers the last chunk.
template <class Value>
class ChunkedMap {
public:
    // Returns NULL if the key has no value.
    Value* find(uint64_t key) {
        Chunk* chunk = chunk_of(key);
        return chunk && (chunk->present >> (key % kSlots) & 1) ? &chunk->values[key % kSlots] : nullptr;
    }

    // Adds or replaces a value. Throws std::bad_alloc without a change if no memory is left.
    void insert(uint64_t key, const Value& value) {
        Chunk* chunk = chunk_of(key);
        if (!chunk) {
            chunk = last_ = &chunks_[key / kSlots];
            last_key_ = key / kSlots;
        }
        const uint64_t bit = uint64_t(1) << (key % kSlots);
        size_ += !(chunk->present & bit);
        chunk->present |= bit;
        chunk->values[key % kSlots] = value;
    }

    void erase(uint64_t key) {
        Chunk* chunk = chunk_of(key);
        const uint64_t bit = uint64_t(1) << (key % kSlots);
        if (!chunk || !(chunk->present & bit)) return;
        chunk->present &= ~bit;
        --size_;
        if (chunk->present) return;
        chunks_.erase(key / kSlots);
        last_ = nullptr;
    }

    uint64_t size() const { return size_; }

private:
    static constexpr uint64_t kSlots = 64;
    struct Chunk {
        uint64_t present = 0;  // one bit for each slot
        Value values[kSlots];
    };

    Chunk* chunk_of(uint64_t key) {
        if (last_ && last_key_ == key / kSlots) return last_;
        const auto found = chunks_.find(key / kSlots);
        if (found == chunks_.end()) return nullptr;
        last_key_ = found->first;
        return last_ = &found->second;
    }

    std::unordered_map<uint64_t, Chunk> chunks_;
    Chunk* last_ = nullptr;
    uint64_t last_key_ = 0;
    uint64_t size_ = 0;
};

}  // namespace stagehand::support
