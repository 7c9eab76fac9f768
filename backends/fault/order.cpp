#include "fault/order.h"

#include <algorithm>

#include "base/plain_format.h"

namespace stagehand::fault {

Order& Order::of_process() {
    static Order order;
    return order;
}

void Order::device_opened(bool only_given_back) {
    std::lock_guard lock(mutex_);
    if (open_++) return;
    first_.clear();
    only_given_back_ = only_given_back;
}

void Order::device_closed() {
    std::lock_guard lock(mutex_);
    if (--open_) return;
    numbers_.clear();
    streams_.clear();
    events_.clear();
    host_.clear();
    mapped_.clear();
    pages_.clear();
    registered_.clear();
    pieces_.clear();
}

void Order::merge(Clock& into, const Clock& from) {
    if (into.size() < from.size()) into.resize(from.size());
    for (size_t i = 0; i < from.size(); i++) into[i] = std::max(into[i], from[i]);
}

uint32_t Order::number_of(sh_stream stream) {
    const auto [found, is_new] = numbers_.try_emplace(stream, static_cast<uint32_t>(streams_.size()));
    if (is_new) streams_.emplace_back();
    return found->second;
}

void Order::found_use(const Mark& mark, const Mark& before, uint64_t address) {
    if (!only_given_back_) found(mark.name, before, address);
}

void Order::found(const char* what, const Mark& before, uint64_t address) {
    races_++;
    if (!first_.empty()) return;
    char hex[32];
    plain_format(hex, sizeof hex, "%#llx", static_cast<unsigned long long>(address));
    first_ = std::string(what) + " at " + hex + " may come before the end of a " + before.name + " on stream " +
             std::to_string(before.stream);
}

// --- Streams and events ---

void Order::stream_made(sh_stream stream) {
    std::lock_guard lock(mutex_);
    numbers_.erase(stream);  // the handle was another stream's
}

void Order::event_made(sh_backend_event event) {
    std::lock_guard lock(mutex_);
    events_.erase(event);
}

void Order::record(sh_backend_event event, sh_stream stream) {
    std::lock_guard lock(mutex_);
    const uint32_t number = number_of(stream);
    merge(streams_[number], host_);
    events_[event] = streams_[number];
}

void Order::wait(sh_stream stream, sh_backend_event event) {
    std::lock_guard lock(mutex_);
    const uint32_t number = number_of(stream);
    if (const auto found = events_.find(event); found != events_.end()) merge(streams_[number], found->second);
}

void Order::stream_ended(sh_stream stream) {
    std::lock_guard lock(mutex_);
    merge(host_, streams_[number_of(stream)]);
}

void Order::event_ended(sh_backend_event event) {
    std::lock_guard lock(mutex_);
    if (const auto found = events_.find(event); found != events_.end()) merge(host_, found->second);
}

void Order::all_ended() {
    std::lock_guard lock(mutex_);
    for (const Clock& clock : streams_) merge(host_, clock);
}

// --- Bytes ---

void Order::operation(const char* name, sh_stream stream, std::span<const Use> uses) {
    std::lock_guard lock(mutex_);
    const uint32_t number = number_of(stream);
    Clock& clock = streams_[number];
    merge(clock, host_);
    if (clock.size() <= number) clock.resize(number + 1);
    const Mark mark{number, clock[number] + 1, name};
    for (const Use& one : uses)
        each_physical(one.address, one.bytes, [&](uint64_t begin, uint64_t end, uint64_t through) {
            Mark here = mark;
            here.through = through;
            use(here, begin, end, one.writes);
        });
    clock[number]++;
}

template <class Visit>
void Order::each_physical(uint64_t address, uint64_t bytes, Visit&& visit) {
    const uint64_t end = address + bytes;
    while (address < end) {
        auto page = mapped_.upper_bound(address);
        const uint64_t next = page == mapped_.end() ? end : std::min(end, page->first);
        if (page == mapped_.begin() || (--page)->first + page->second.first <= address) {
            visit(address, next, 0);  // memory without pages
            address = next;
            continue;
        }
        const auto [page_bytes, place] = page->second;
        const uint64_t stop = std::min(end, page->first + page_bytes);
        visit(place + (address - page->first), place + (stop - page->first), page->first);
        address = stop;
    }
}

void Order::split(uint64_t at) {
    auto piece = pieces_.upper_bound(at);
    if (piece == pieces_.begin() || (--piece)->first == at || piece->second.end <= at) return;
    Piece rest = piece->second;
    piece->second.end = at;
    pieces_.emplace(at, std::move(rest));
}

// Makes pieces begin and end there. Returns the first that does not lie before.
Order::Pieces::iterator Order::cut(uint64_t begin, uint64_t end) {
    split(begin);
    split(end);
    return pieces_.lower_bound(begin);
}

void Order::use(const Mark& mark, uint64_t begin, uint64_t end, bool writes) {
    const Clock& clock = streams_[mark.stream];
    auto piece = cut(begin, end);
    uint64_t at = begin;
    while (at < end) {
        if (piece == pieces_.end() || piece->first > at) {
            const uint64_t stop = piece == pieces_.end() ? end : std::min(end, piece->first);
            piece = pieces_.emplace_hint(piece, at, Piece{stop, {}, {}});
        }
        Piece& there = piece->second;
        if (!has(clock, there.written)) found_use(mark, there.written, at);
        if (writes) {
            for (const Mark& read : there.read)
                if (!has(clock, read)) found_use(mark, read, at);
            there.read.clear();
            there.written = mark;
        } else {
            std::erase_if(there.read, [&](const Mark& read) { return has(clock, read); });
            there.read.push_back(mark);
        }
        at = there.end;
        ++piece;
    }
}

// Queued work that uses the memory must be known to have ended.
void Order::give_back(const char* what, uint64_t begin, uint64_t end) {
    auto piece = cut(begin, end);
    while (piece != pieces_.end() && piece->first < end) {
        if (!has(host_, piece->second.written)) found(what, piece->second.written, piece->first);
        for (const Mark& read : piece->second.read)
            if (!has(host_, read)) found(what, read, piece->first);
        piece = pieces_.erase(piece);
    }
}

// Queued work that uses a page through this address must be known to have ended.
void Order::unmap(uint64_t begin, uint64_t end, uint64_t through) {
    for (auto piece = cut(begin, end); piece != pieces_.end() && piece->first < end; ++piece) {
        const auto look = [&](const Mark& mark) {
            if (mark.through == through && !has(host_, mark)) found("pages_unmap", mark, piece->first);
        };
        look(piece->second.written);
        for (const Mark& read : piece->second.read) look(read);
    }
}

// --- Memory ---

void Order::pages_mapped(const void* device, uint64_t address, uint64_t page_bytes,
                         std::span<const sh_backend_page> pages) {
    std::lock_guard lock(mutex_);
    for (const sh_backend_page page : pages) {
        const auto [place, is_new] = pages_.try_emplace({device, page}, next_place_, page_bytes);
        if (is_new) next_place_ += page_bytes;
        mapped_[address] = {page_bytes, place->second.first};
        address += page_bytes;
    }
}

void Order::pages_unmapped(uint64_t address, uint64_t page_bytes, uint64_t count) {
    std::lock_guard lock(mutex_);
    each_physical(address, page_bytes * count,
                  [&](uint64_t begin, uint64_t end, uint64_t through) { unmap(begin, end, through); });
    mapped_.erase(mapped_.lower_bound(address), mapped_.lower_bound(address + page_bytes * count));
}

void Order::pages_destroyed(const void* device, std::span<const sh_backend_page> pages) {
    std::lock_guard lock(mutex_);
    for (const sh_backend_page page : pages) {
        const auto known = pages_.find({device, page});
        if (known == pages_.end()) continue;  // it was never mapped
        const auto [place, bytes] = known->second;
        give_back("pages_destroy", place, place + bytes);
        pages_.erase(known);
    }
}

void Order::range_freed(uint64_t address, uint64_t bytes) {
    std::lock_guard lock(mutex_);
    give_back("range_free", address, address + bytes);
}

void Order::host_registered(const void* memory, uint64_t bytes) {
    std::lock_guard lock(mutex_);
    registered_[memory] = bytes;
}

void Order::host_unregistered(const void* memory) {
    std::lock_guard lock(mutex_);
    const auto found = registered_.find(memory);
    if (found == registered_.end()) return;
    const auto begin = reinterpret_cast<uint64_t>(memory);
    give_back("host_unregister", begin, begin + found->second);
    registered_.erase(found);
}

uint64_t Order::races() const {
    std::lock_guard lock(mutex_);
    return races_;
}

std::string Order::first() const {
    std::lock_guard lock(mutex_);
    return first_;
}

}  // namespace stagehand::fault
