// Landlord: the choice of the block to evict when the order of use is not known (experts, shards of a table).
//
// The algorithm is Landlord, also known as GreedyDual-Size, with use counts. A block's credit is the cost of fetching
// it again per byte, times its use count. All residents pay rent at one rate. The block whose credit runs out first is
// evicted. A use restores the credit. Held blocks are never chosen. Every operation is O(log n).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <unordered_map>

namespace stagehand::policy {

class Landlord {
public:
    using Id = uint64_t;

    // Ensures that inserting the block needs no memory. Nothing changes if there is no memory for that.
    void expect(Id id);

    // The block is on the device from now on, which counts as a use. `cost` is the cost of fetching it, in any unit. A
    // block that is on the device already is only touched.
    void insert(Id id, uint64_t bytes, double cost);

    // Counts a use of the block. Restores its credit if the block is on the device.
    void touch(Id id);

    // Holds are counted. A held block is no victim until it is released as often as it was held. Nothing happens if the
    // block is not on the device. Neither call needs memory.
    void hold(Id id);
    void release(Id id);

    // The block to evict next. Nothing if all blocks are held or there is no block. Among equals, the least recently
    // used one.
    std::optional<Id> victim() const;

    // The block has left the device. Its credit becomes the rent that all others have paid. Its use count stays.
    void evict(Id id);

    // The block does not exist any more, whether or not it was on the device.
    void forget(Id id);

    size_t resident() const { return resident_; }
    uint64_t resident_bytes() const { return bytes_; }

    // The use count so far. Older uses count less: a use counts half after as many further uses as make eight for each
    // known block.
    double uses(Id id) const;

private:
    struct Rank {
        double credit;
        uint64_t last_use;
        Id id;
        bool operator<(const Rank& other) const {
            if (credit != other.credit) return credit < other.credit;
            return last_use < other.last_use;
        }
    };
    using Ranks = std::set<Rank>;
    struct Block {
        uint64_t bytes = 0;
        double cost = 0;
        double uses = 0;
        uint64_t counted_in = 0;  // the age for which `uses` is exact
        double credit = 0;        // includes the rent that had been paid when the credit was set
        uint64_t last_use = 0;
        uint32_t held = 0;
        bool resident = false;
        // Its node of evictable_, kept here while the block is not in that set, so that release() cannot fail.
        Ranks::node_type place;
    };

    static Rank rank(Id id, const Block& block) { return {block.credit, block.last_use, id}; }
    double aged_uses(const Block& block) const;
    void count_use(Block& block);
    void restore_credit(Id id, Block& block);
    void rank_in(Id id, Block& block);
    void rank_out(Id id, Block& block);
    void leave(Id id, Block& block);

    std::unordered_map<Id, Block> blocks_;
    Ranks evictable_;
    double rent_ = 0;
    uint64_t clock_ = 0;
    uint64_t age_ = 0;
    uint64_t uses_in_age_ = 0;
    size_t resident_ = 0;
    uint64_t bytes_ = 0;
};

}  // namespace stagehand::policy
