// Copies: what a spiller knows of each saved tensor. A copy is a range of device bytes that leaves and comes back as
// one. A ticket is one tensor in it.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <unordered_map>
#include <vector>

#include <stagehand/spill.h>

#include "base/status.h"
#include "core/spill/saved_span.h"
#include "core/spill/stream_set.h"
#include "transfer/carrier/carrier.h"
#include "transfer/host/class_pool.h"

namespace stagehand::core {

enum class Where : uint8_t {
    kept,     // the engine's memory has the bytes; they may leave
    staying,  // the engine's memory has the bytes, and they never leave
    leaving,  // a copy to the host was begun; the engine's memory has the bytes too
    away      // host memory has the bytes
};

// Memory of the engine that a copy was begun into ahead of its restore.
struct Prefetch {
    uint64_t address = 0;  // 0: none
    sh_stream stream = 0;
};

struct SavedCopy {
    uint64_t number = 0;
    SavedSpan span;
    uint64_t key = 0;   // of the engine, for sharing
    StreamSet streams;  // of its tickets
    Where where = Where::kept;
    uint64_t link_mark = 0;         // the place of its last copy in the queue of the link
    transfer::Trip departure = 0;   // the trip to the host
    bool has_left = false;          // the copy to the host is known to have ended
    uint32_t format = 0;            // SH_FORMAT_* of its elements; 0: unknown
    bool packed = false;            // host memory has it in tiles
    uint32_t ordinal = UINT32_MAX;  // in the order of its step; UINT32_MAX: of an earlier step
    bool checked = false;           // `checksum` is known
    uint64_t checksum = 0;
    Prefetch prefetch;
    std::unique_ptr<transfer::PoolBuffer> buffer;  // since the bytes began to leave
    std::vector<sh_ticket> tickets;
    std::list<SavedCopy*>::iterator place;  // in the list of its state

    bool is_on_device() const { return where == Where::kept || where == Where::staying || where == Where::leaving; }
};

struct Ticket {
    SavedCopy* copy = nullptr;
    uint64_t offset = 0;   // of the tensor's first element in the copy
    sh_stream stream = 0;  // of its save
    bool named = false;    // the engine knows that it has left
};

// Bytes of the copies in each state.
struct SavedBytes {
    uint64_t kept = 0;  // and could leave
    uint64_t staying = 0;
    uint64_t leaving = 0;
    uint64_t away = 0;
};

// Only bookkeeping: it moves no bytes. The spiller's mutex guards it. Functions that may throw change nothing then.
class Copies {
public:
    using List = std::list<SavedCopy*>;

    Ticket* find(sh_ticket ticket);
    Status find(sh_ticket ticket, const Ticket** out);
    // A ticket of the copy that the engine knows to have left, or null.
    const sh_ticket* find_named(const SavedCopy& copy);
    // The copy with this key that holds the span, or null. A key of 0 is shared by nobody.
    SavedCopy* find_shared(uint64_t key, const SavedSpan& span);

    // Makes a copy with one ticket, of a save on the stream, in the state `kept` or `staying`.
    sh_ticket add(const SavedSpan& span, uint64_t key, sh_stream stream, Where where);
    sh_ticket add_ticket(SavedCopy& copy, uint64_t offset, sh_stream stream);
    // Ends a ticket, which has left the streams of its copy. Returns the copy without an owner if that was its last
    // one.
    std::unique_ptr<SavedCopy> remove_ticket(sh_ticket ticket);
    // Changes the state of a copy. It becomes the newest of that state.
    void move(SavedCopy& copy, Where to) noexcept;

    // Copies of a state, the oldest first.
    const List& kept() const { return kept_; }
    const List& leaving() const { return leaving_; }
    const SavedBytes& bytes() const { return bytes_; }
    bool empty() const { return copies_.empty(); }
    size_t size() const { return copies_.size(); }
    template <class Visit>
    void for_each(Visit&& visit) {
        for (auto& [number, copy] : copies_) visit(*copy);
    }

private:
    List& list_of(Where where);
    uint64_t& bytes_of(Where where);

    std::unordered_map<uint64_t, std::unique_ptr<SavedCopy>> copies_;
    std::unordered_map<sh_ticket, Ticket> tickets_;
    std::unordered_multimap<uint64_t, SavedCopy*> by_key_;
    List kept_, staying_, leaving_, away_;
    SavedBytes bytes_;
    uint64_t next_number_ = 1;
};

}  // namespace stagehand::core
