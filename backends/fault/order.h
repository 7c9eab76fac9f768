// Order: finds accesses to the same bytes that nothing orders, and memory that is given back while queued work may use
// it.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <stagehand/backend.h>

namespace stagehand::fault {

// Bytes that an operation reads or writes.
struct Use {
    uint64_t address = 0, bytes = 0;
    bool writes = false;
};

// Happens-before by vector clocks: an operation comes after those before it on its stream, after the events that its
// stream waits for, and after what the host knew to have ended when it was queued. It finds a wait that is missing
// whether or not the bytes come out wrong this time. The host counts as one thread, because the library's threads hand
// over what they know under locks. Device memory is known by its pages, because a page may have several addresses.
//
// Of all fault devices of the process. Thread-safe. Calls are told in the order in which they return.
class Order {
public:
    static Order& of_process();

    // `only_given_back`: accesses are followed, but only memory that is given back too early counts. What the first of
    // the open devices says is true of all.
    void device_opened(bool only_given_back);
    // When the last one is closed, nothing of them is left.
    void device_closed();

    void operation(const char* name, sh_stream stream, std::span<const Use> uses);
    void record(sh_backend_event event, sh_stream stream);
    void wait(sh_stream stream, sh_backend_event event);
    void stream_made(sh_stream stream);
    void event_made(sh_backend_event event);
    // The host knows that it has ended.
    void stream_ended(sh_stream stream);
    void event_ended(sh_backend_event event);
    void all_ended();

    // Devices number their pages each for itself.
    void pages_mapped(const void* device, uint64_t address, uint64_t page_bytes,
                      std::span<const sh_backend_page> pages);
    void pages_unmapped(uint64_t address, uint64_t page_bytes, uint64_t count);
    void pages_destroyed(const void* device, std::span<const sh_backend_page> pages);
    void range_freed(uint64_t address, uint64_t bytes);
    void host_registered(const void* memory, uint64_t bytes);
    void host_unregistered(const void* memory);

    uint64_t races() const;
    // What was found first since a device was opened while none was open. Empty if nothing was.
    std::string first() const;

private:
    using Clock = std::vector<uint64_t>;  // for each stream by its number, the last operation that is known to precede
    struct Mark {
        uint32_t stream = 0;
        uint64_t tick = 0;
        const char* name = "";
        uint64_t through = 0;  // the address of the page, which may have others
    };
    struct Piece {
        uint64_t end = 0;
        Mark written;  // tick 0: never
        std::vector<Mark> read;
    };
    using Pieces = std::map<uint64_t, Piece>;  // by their first bytes

    static void merge(Clock& into, const Clock& from);
    static bool has(const Clock& clock, const Mark& mark) {
        return mark.tick == 0 || (mark.stream < clock.size() && clock[mark.stream] >= mark.tick);
    }
    uint32_t number_of(sh_stream stream);
    template <class Visit>
    void each_physical(uint64_t address, uint64_t bytes, Visit&& visit);
    void split(uint64_t at);
    Pieces::iterator cut(uint64_t begin, uint64_t end);
    void use(const Mark& mark, uint64_t begin, uint64_t end, bool writes);
    void give_back(const char* what, uint64_t begin, uint64_t end);
    void unmap(uint64_t begin, uint64_t end, uint64_t through);
    void found_use(const Mark& mark, const Mark& before, uint64_t address);
    void found(const char* what, const Mark& before, uint64_t address);

    mutable std::mutex mutex_;
    uint32_t open_ = 0;  // devices
    bool only_given_back_ = false;
    std::unordered_map<sh_stream, uint32_t> numbers_;
    std::vector<Clock> streams_;  // what the next operation of each comes after
    std::unordered_map<sh_backend_event, Clock> events_;
    Clock host_;
    std::map<uint64_t, std::pair<uint64_t, uint64_t>> mapped_;  // address -> bytes, place among the pages
    std::map<std::pair<const void*, sh_backend_page>, std::pair<uint64_t, uint64_t>> pages_;  // place and bytes of each
    uint64_t next_place_ = uint64_t(1) << 62;                                                 // no address is as large
    std::unordered_map<const void*, uint64_t> registered_;
    Pieces pieces_;
    uint64_t races_ = 0;
    std::string first_;
};

}  // namespace stagehand::fault
