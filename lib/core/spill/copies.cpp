#include "core/spill/copies.h"

#include <atomic>
#include <string>

#include "core/spill/room_for_one.h"

namespace stagehand::core {
namespace {

// One count for all spillers of the process, so that a ticket of another spiller is never found.
std::atomic<sh_ticket> last_ticket{0};

bool holds(const SavedSpan& outer, const SavedSpan& inner) {
    return inner.address >= outer.address && inner.address - outer.address <= outer.bytes &&
           inner.bytes <= outer.bytes - (inner.address - outer.address);
}

}  // namespace

Ticket* Copies::find(sh_ticket ticket) {
    const auto found = tickets_.find(ticket);
    return found == tickets_.end() ? nullptr : &found->second;
}

Status Copies::find(sh_ticket ticket, const Ticket** out) {
    *out = find(ticket);
    if (*out) return Status();
    return Status(SH_ERROR_INVALID_HANDLE,
                  "ticket " + std::to_string(ticket) + " is not one of this spiller, or has been released");
}

const sh_ticket* Copies::find_named(const SavedCopy& copy) {
    for (const sh_ticket& ticket : copy.tickets)
        if (find(ticket)->named) return &ticket;
    return nullptr;
}

SavedCopy* Copies::find_shared(uint64_t key, const SavedSpan& span) {
    if (!key || !span.bytes) return nullptr;
    const auto [begin, end] = by_key_.equal_range(key);
    for (auto at = begin; at != end; ++at)
        if (holds(at->second->span, span)) return at->second;
    return nullptr;
}

sh_ticket Copies::add(const SavedSpan& span, uint64_t key, sh_stream stream, Where where) {
    auto made = std::make_unique<SavedCopy>();
    SavedCopy& copy = *made;
    copy.number = next_number_;
    copy.span = span;
    copy.key = key;
    copy.where = where;
    List place{&copy};
    const auto entry = copies_.emplace(copy.number, std::move(made)).first;
    try {
        const sh_ticket ticket = add_ticket(copy, span.offset, stream);
        if (key) {
            try {
                by_key_.emplace(key, &copy);
            } catch (...) {
                tickets_.erase(ticket);
                throw;
            }
        }
        next_number_++;
        copy.place = place.begin();
        list_of(where).splice(list_of(where).end(), place);
        bytes_of(where) += span.bytes;
        return ticket;
    } catch (...) {
        copies_.erase(entry);
        throw;
    }
}

sh_ticket Copies::add_ticket(SavedCopy& copy, uint64_t offset, sh_stream stream) {
    make_room_for_one(copy.tickets);
    copy.streams.make_room();
    const sh_ticket ticket = last_ticket.fetch_add(1, std::memory_order_relaxed) + 1;
    tickets_.emplace(ticket, Ticket{&copy, offset, stream});
    copy.tickets.push_back(ticket);
    copy.streams.join(stream);
    return ticket;
}

std::unique_ptr<SavedCopy> Copies::remove_ticket(sh_ticket ticket) {
    const auto entry = tickets_.find(ticket);
    SavedCopy& copy = *entry->second.copy;
    tickets_.erase(entry);
    std::erase(copy.tickets, ticket);
    if (!copy.tickets.empty()) return nullptr;
    list_of(copy.where).erase(copy.place);
    bytes_of(copy.where) -= copy.span.bytes;
    const auto [begin, end] = by_key_.equal_range(copy.key);
    for (auto at = begin; at != end; ++at) {
        if (at->second != &copy) continue;
        by_key_.erase(at);
        break;
    }
    return std::move(copies_.extract(copy.number).mapped());
}

void Copies::move(SavedCopy& copy, Where to) noexcept {
    if (copy.where == to) return;
    bytes_of(copy.where) -= copy.span.bytes;
    bytes_of(to) += copy.span.bytes;
    list_of(to).splice(list_of(to).end(), list_of(copy.where), copy.place);
    copy.where = to;
}

Copies::List& Copies::list_of(Where where) {
    switch (where) {
        case Where::kept:
            return kept_;
        case Where::staying:
            return staying_;
        case Where::leaving:
            return leaving_;
        case Where::away:
            break;
    }
    return away_;
}

uint64_t& Copies::bytes_of(Where where) {
    switch (where) {
        case Where::kept:
            return bytes_.kept;
        case Where::staying:
            return bytes_.staying;
        case Where::leaving:
            return bytes_.leaving;
        case Where::away:
            break;
    }
    return bytes_.away;
}

}  // namespace stagehand::core
