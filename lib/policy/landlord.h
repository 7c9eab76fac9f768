// Which block to give up when nobody knows the order of use (experts, shards of a table).
//
// Landlord, also known as GreedyDual-Size, with use counts: a block's credit is what fetching it again would
// cost for each byte, times how often it is used; all residents pay rent at one rate, and who is out of
// credit first goes. A use restores the credit. Blocks that are held are never named. Every operation is
// O(log n).
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

    // The block is on the device from now on, which counts as a use. `cost` is that of fetching it, in any
    // unit. One that is there already is only touched.
    void insert(Id id, uint64_t bytes, double cost);

    // A use of a block that is on the device; of another it is only counted.
    void touch(Id id);

    // Counted. A held block is no victim until it is released as often as it was held. Of a block that is not
    // on the device there is nothing to hold.
    void hold(Id id);
    void release(Id id);

    // The block to give up next; nothing if all are held or there is none. Among equals the one not used for
    // longest.
    std::optional<Id> victim() const;

    // The block has left the device: its credit becomes the rent that all others have paid. Its count of uses
    // stays.
    void evict(Id id);

    // The block exists no more, wherever it was.
    void forget(Id id);

    size_t resident() const { return resident_; }
    uint64_t resident_bytes() const { return bytes_; }

    // Uses so far, where those long ago count less: a half after as many uses as make eight for each block
    // known.
    double uses(Id id) const;

private:
    struct Block {
        uint64_t bytes = 0;
        double cost = 0;
        double uses = 0;
        uint64_t counted_in = 0;  // the age in which `uses` was right
        double credit = 0;        // including the rent that had been paid when it was set
        uint64_t last_use = 0;
        uint32_t held = 0;
        bool resident = false;
    };
    struct Rank {
        double credit;
        uint64_t last_use;
        Id id;
        bool operator<(const Rank& other) const {
            if (credit != other.credit) return credit < other.credit;
            return last_use < other.last_use;
        }
    };

    static Rank rank(Id id, const Block& block) { return {block.credit, block.last_use, id}; }
    double aged_uses(const Block& block) const;
    void count_use(Block& block);
    void restore_credit(Id id, Block& block);
    void leave(Id id, Block& block);

    std::unordered_map<Id, Block> blocks_;
    std::set<Rank> evictable_;
    double rent_ = 0;
    uint64_t clock_ = 0;
    uint64_t age_ = 0;
    uint64_t uses_in_age_ = 0;
    size_t resident_ = 0;
    uint64_t bytes_ = 0;
};

}  // namespace stagehand::policy
