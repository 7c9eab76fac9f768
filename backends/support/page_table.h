// PageTable: knows which pages exist, which addresses are reserved and which pages are mapped where. It returns an
// error for mistakes that a driver would answer with a crash or with silence, such as a page mapped over another page
// or a mapped page being destroyed.
#pragma once

#include <cstdint>
#include <map>

#include <stagehand/backend.h>

#include "support/chunked_map.h"

namespace stagehand::support {

// Only bookkeeping; the caller locks. A function that fails changes nothing and stores a text for last_error().
class PageTable {
public:
    explicit PageTable(uint64_t granularity) : granularity_(granularity) {}

    // Checks that page_bytes is a valid page size and that the product fits 64 bits. `out_bytes` is the product.
    sh_status check_size(uint64_t page_bytes, uint64_t count, uint64_t* out_bytes) const;

    sh_status add_pages(uint64_t page_bytes, uint64_t count, const sh_backend_page* pages);
    sh_status remove_pages(uint64_t page_bytes, uint64_t count, const sh_backend_page* pages);

    sh_status add_range(uint64_t address, uint64_t bytes);
    sh_status remove_range(uint64_t address, uint64_t bytes);

    sh_status map(uint64_t address, uint64_t page_bytes, uint64_t count, const sh_backend_page* pages);
    // Returns the status that unmap() would return. Prepares memory for unmap().
    sh_status check_unmap(uint64_t address, uint64_t page_bytes, uint64_t count);
    sh_status unmap(uint64_t address, uint64_t page_bytes, uint64_t count);
    // Returns the page that map() put at the address, or 0.
    sh_backend_page page_at(uint64_t address, uint64_t page_bytes);

    // Fails unless every byte is mapped. Several readers may call it at once if nobody writes.
    sh_status check_mapped(uint64_t address, uint64_t bytes) const;

    uint64_t pages() const { return pages_.size(); }
    uint64_t mapped_bytes() const { return mapped_bytes_; }
    const std::map<uint64_t, uint64_t>& ranges() const { return ranges_; }  // address to bytes

private:
    struct Page {
        uint64_t bytes = 0;
        uint64_t mappings = 0;
    };
    struct Mapping {
        uint64_t address = 0;
        sh_backend_page page = 0;
    };

    sh_status check_free_of_mappings(uint64_t address, uint64_t bytes) const;
    void forget_mappings(uint64_t address, uint64_t page_bytes, uint64_t count);
    void prepare_spans(uint64_t count);
    void add_span(uint64_t begin, uint64_t end);
    void cut_span(uint64_t begin, uint64_t end);

    const uint64_t granularity_;
    ChunkedMap<Page> pages_;
    std::map<uint64_t, uint64_t> ranges_;
    std::map<uint64_t, ChunkedMap<Mapping>>
        mappings_;  // by page size, then by address / size: the key is unique, because pages do not overlap
    std::map<uint64_t, uint64_t> spans_;        // mapped addresses, begin to end; neighbours are merged
    std::map<uint64_t, uint64_t> spare_spans_;  // map nodes for more spans, one for each map() that is not undone yet
    uint64_t to_unmap_ = 0;                     // number of map() calls that are not undone yet
    uint64_t mapped_bytes_ = 0;
};

}  // namespace stagehand::support
