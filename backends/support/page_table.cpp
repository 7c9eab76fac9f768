#include "support/page_table.h"

#include <cinttypes>
#include <iterator>
#include <utility>

#include "support/last_error.h"

namespace stagehand::support {

sh_status PageTable::check_size(uint64_t page_bytes, uint64_t count, uint64_t* out_bytes) const {
    if (page_bytes == 0 || page_bytes % granularity_ != 0) {
        return fail(SH_ERROR_INVALID_ARGUMENT,
                    "pages of %" PRIu64 " bytes are not a multiple of the granularity, %" PRIu64, page_bytes,
                    granularity_);
    }
    if (__builtin_mul_overflow(page_bytes, count, out_bytes)) {
        return fail(SH_ERROR_INVALID_ARGUMENT, "%" PRIu64 " pages of %" PRIu64 " bytes exceed 64 bits", count,
                    page_bytes);
    }
    return SH_OK;
}

sh_status PageTable::add_pages(uint64_t page_bytes, uint64_t count, const sh_backend_page* pages) {
    uint64_t added = 0;
    try {
        for (; added < count; ++added) pages_.insert(pages[added], Page{page_bytes, 0});
    } catch (...) {
        while (added > 0) pages_.erase(pages[--added]);
        throw;
    }
    return SH_OK;
}

sh_status PageTable::remove_pages(uint64_t page_bytes, uint64_t count, const sh_backend_page* pages) {
    constexpr uint64_t kSeen = UINT64_MAX;  // marks a page in `mappings` while the list is checked, so that a page that
                                            // is named twice is found
    sh_status status = SH_OK;
    uint64_t seen = 0;
    for (; seen < count; ++seen) {
        Page* page = pages_.find(pages[seen]);
        if (!page) {
            status = fail(SH_ERROR_INVALID_HANDLE, "page %" PRIu64 " does not exist", pages[seen]);
        } else if (page->bytes != page_bytes) {
            status = fail(SH_ERROR_INVALID_ARGUMENT, "page %" PRIu64 " has %" PRIu64 " bytes, not %" PRIu64,
                          pages[seen], page->bytes, page_bytes);
        } else if (page->mappings == kSeen) {
            status = fail(SH_ERROR_INVALID_ARGUMENT, "page %" PRIu64 " is in the list twice", pages[seen]);
        } else if (page->mappings) {
            status = fail(SH_ERROR_INVALID_STATE, "page %" PRIu64 " is still mapped at %" PRIu64 " addresses",
                          pages[seen], page->mappings);
        } else {
            page->mappings = kSeen;
            continue;
        }
        break;
    }
    if (status < 0) {
        while (seen > 0) pages_.find(pages[--seen])->mappings = 0;
        return status;
    }
    for (uint64_t i = 0; i < count; ++i) pages_.erase(pages[i]);
    return SH_OK;
}

sh_status PageTable::add_range(uint64_t address, uint64_t bytes) {
    ranges_.emplace(address, bytes);
    return SH_OK;
}

sh_status PageTable::remove_range(uint64_t address, uint64_t bytes) {
    const auto range = ranges_.find(address);
    if (range == ranges_.end()) return fail(SH_ERROR_INVALID_ARGUMENT, "no range is reserved at %#" PRIx64, address);
    if (range->second != bytes) {
        return fail(SH_ERROR_INVALID_ARGUMENT, "the range at %#" PRIx64 " has %" PRIu64 " bytes, not %" PRIu64, address,
                    range->second, bytes);
    }
    const auto span = spans_.lower_bound(address);
    const bool into = span != spans_.begin() && std::prev(span)->second > address;
    if (into || (span != spans_.end() && span->first < address + bytes)) {
        return fail(SH_ERROR_INVALID_STATE, "pages are still mapped in the range at %#" PRIx64, address);
    }
    ranges_.erase(range);
    return SH_OK;
}

sh_status PageTable::check_free_of_mappings(uint64_t address, uint64_t bytes) const {
    auto range = ranges_.upper_bound(address);
    if (range == ranges_.begin() || (--range, address - range->first >= range->second) ||
        range->second - (address - range->first) < bytes) {
        return fail(SH_ERROR_INVALID_ARGUMENT, "%#" PRIx64 " + %" PRIu64 " bytes are not inside one reserved range",
                    address, bytes);
    }
    if (address % granularity_ != 0) {
        return fail(SH_ERROR_INVALID_ARGUMENT, "address %#" PRIx64 " is not a multiple of the granularity, %" PRIu64,
                    address, granularity_);
    }
    const auto span = spans_.upper_bound(address);
    if (span != spans_.begin() && std::prev(span)->second > address) {
        return fail(SH_ERROR_INVALID_STATE, "address %#" PRIx64 " is mapped already", address);
    }
    if (span != spans_.end() && span->first < address + bytes) {
        return fail(SH_ERROR_INVALID_STATE, "address %#" PRIx64 " is mapped already", span->first);
    }
    return SH_OK;
}

sh_status PageTable::map(uint64_t address, uint64_t page_bytes, uint64_t count, const sh_backend_page* pages) {
    uint64_t bytes = 0;
    if (sh_status status = check_size(page_bytes, count, &bytes); status < 0) return status;
    if (count == 0) return SH_OK;
    if (sh_status status = check_free_of_mappings(address, bytes); status < 0) return status;
    for (uint64_t i = 0; i < count; ++i) {
        const Page* page = pages_.find(pages[i]);
        if (!page) return fail(SH_ERROR_INVALID_HANDLE, "page %" PRIu64 " does not exist", pages[i]);
        if (page->bytes != page_bytes) {
            return fail(SH_ERROR_INVALID_ARGUMENT, "page %" PRIu64 " has %" PRIu64 " bytes, not %" PRIu64, pages[i],
                        page->bytes, page_bytes);
        }
    }
    prepare_spans(to_unmap_ + 1);
    ChunkedMap<Mapping>& table = mappings_[page_bytes];
    uint64_t added = 0;
    try {
        for (; added < count; ++added) {
            const uint64_t at = address + added * page_bytes;
            table.insert(at / page_bytes, Mapping{at, pages[added]});
            ++pages_.find(pages[added])->mappings;
        }
        add_span(address, address + bytes);
    } catch (...) {
        forget_mappings(address, page_bytes, added);
        throw;
    }
    mapped_bytes_ += bytes;
    ++to_unmap_;
    return SH_OK;
}

sh_status PageTable::check_unmap(uint64_t address, uint64_t page_bytes, uint64_t count) {
    uint64_t bytes = 0;
    if (sh_status status = check_size(page_bytes, count, &bytes); status < 0) return status;
    for (uint64_t i = 0; i < count; ++i) {
        const uint64_t at = address + i * page_bytes;
        if (!page_at(at, page_bytes)) {
            return fail(SH_ERROR_INVALID_STATE, "no page of %" PRIu64 " bytes is mapped at %#" PRIx64, page_bytes, at);
        }
    }
    // Prepares unmap(), which must not fail. A spare node is missing only if several calls unmap the pages of one
    // map().
    prepare_spans(1);
    return SH_OK;
}

void PageTable::prepare_spans(uint64_t count) {
    for (uint64_t key = spare_spans_.empty() ? 0 : spare_spans_.rbegin()->first + 1; spare_spans_.size() < count; ++key)
        spare_spans_.emplace_hint(spare_spans_.end(), key, 0);
}

sh_status PageTable::unmap(uint64_t address, uint64_t page_bytes, uint64_t count) {
    if (sh_status status = check_unmap(address, page_bytes, count); status < 0 || count == 0) return status;
    const uint64_t bytes = page_bytes * count;
    cut_span(address, address + bytes);
    forget_mappings(address, page_bytes, count);
    mapped_bytes_ -= bytes;
    if (to_unmap_) --to_unmap_;
    return SH_OK;
}

sh_backend_page PageTable::page_at(uint64_t address, uint64_t page_bytes) {
    const auto table = mappings_.find(page_bytes);
    if (table == mappings_.end()) return 0;
    const Mapping* mapping = table->second.find(address / page_bytes);
    return mapping && mapping->address == address ? mapping->page : 0;
}

void PageTable::forget_mappings(uint64_t address, uint64_t page_bytes, uint64_t count) {
    ChunkedMap<Mapping>& table = mappings_.find(page_bytes)->second;
    for (uint64_t i = 0; i < count; ++i) {
        const uint64_t key = (address + i * page_bytes) / page_bytes;
        --pages_.find(table.find(key)->page)->mappings;
        table.erase(key);
    }
}

void PageTable::add_span(uint64_t begin, uint64_t end) {
    const auto after = spans_.lower_bound(begin);
    if (after != spans_.end() && after->first == end) {
        end = after->second;
        // Takes over the node of the neighbour. This allocates nothing, so it cannot fail half way.
        auto node = spans_.extract(after);
        node.key() = begin;
        node.mapped() = end;
        const auto here = spans_.insert(std::move(node)).position;
        if (here != spans_.begin() && std::prev(here)->second == begin) {
            std::prev(here)->second = end;
            spans_.erase(here);
        }
        return;
    }
    if (after != spans_.begin() && std::prev(after)->second == begin) {
        std::prev(after)->second = end;
        return;
    }
    spans_.emplace(begin, end);
}

// [begin, end) must lie in one span, and a spare node must exist.
void PageTable::cut_span(uint64_t begin, uint64_t end) {
    const auto span = std::prev(spans_.upper_bound(begin));
    const uint64_t span_end = span->second;
    if (end < span_end) {
        auto rest = spare_spans_.extract(spare_spans_.begin());
        rest.key() = end;
        rest.mapped() = span_end;
        spans_.insert(std::move(rest));
    }
    if (span->first < begin) {
        span->second = begin;
    } else {
        spans_.erase(span);
    }
}

sh_status PageTable::check_mapped(uint64_t address, uint64_t bytes) const {
    if (bytes == 0) return SH_OK;
    auto span = spans_.upper_bound(address);
    if (span == spans_.begin() || (--span, span->second <= address) || span->second - address < bytes) {
        return fail(SH_ERROR_INVALID_ARGUMENT,
                    "device address %#" PRIx64 " + %" PRIu64 " bytes: a part of the range is not mapped", address,
                    bytes);
    }
    return SH_OK;
}

}  // namespace stagehand::support
