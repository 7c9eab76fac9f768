// What every reader checks when it has read a header: names that occur once, bytes that belong to one tensor.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "model.h"

namespace stagehand::cli::model {

struct HashedIndex {
    std::uint64_t hash;
    std::uint64_t index;
};

// The numbers 0 to count - 1, ordered by the hash of their names, then name, then number: equal names are
// neighbours. Comparing hashes is several times faster than comparing names, and unlike a hash table this is
// not quadratic on names that were made to collide.
template <typename NameOf>
std::vector<HashedIndex> order_by_name(std::size_t count, NameOf name_of) {
    std::vector<HashedIndex> order(count);
    for (std::size_t i = 0; i < count; ++i) {
        order[i] = {std::hash<std::string_view>{}(name_of(i)), i};
    }
    std::sort(order.begin(), order.end(), [](const HashedIndex& a, const HashedIndex& b) {
        return a.hash != b.hash ? a.hash < b.hash : a.index < b.index;
    });
    for (auto first = order.begin(); first != order.end();) {
        const auto same_hash = [&](const HashedIndex& entry) { return entry.hash == first->hash; };
        const auto same_name = [&](const HashedIndex& entry) {
            return name_of(entry.index) == name_of(first->index);
        };
        const auto last = std::find_if_not(first + 1, order.end(), same_hash);
        if (!std::all_of(first + 1, last, same_name)) {
            std::sort(first, last, [&](const HashedIndex& a, const HashedIndex& b) {
                const int names = name_of(a.index).compare(name_of(b.index));
                return names != 0 ? names < 0 : a.index < b.index;
            });
        }
        first = last;
    }
    return order;
}

// Calls `found(first, second)` with the numbers of two equal names, first < second, and stops; or does
// nothing.
template <typename NameOf, typename Found>
void find_equal_names(std::size_t count, NameOf name_of, Found found) {
    const std::vector<HashedIndex> order = order_by_name(count, name_of);
    for (std::size_t i = 1; i < count; ++i) {
        if (order[i - 1].hash == order[i].hash && name_of(order[i - 1].index) == name_of(order[i].index)) {
            found(static_cast<std::size_t>(order[i - 1].index), static_cast<std::size_t>(order[i].index));
            return;
        }
    }
}

// The field of messages about a tensor, with what of it is wrong: "tensor 'x': shape".
std::string tensor_field(std::string_view name, std::string_view what = {});

// Throws when two of the tensors from `first` on have one name.
void check_names(const Model& model, std::size_t first = 0);

// Throws when two of the tensors from `first` on, all of one file, share bytes; and, unless `gaps_allowed`,
// when there are bytes before or between them that belong to none.
void check_layout(const Model& model, std::size_t first, bool gaps_allowed);

// Adds up total_bytes of the tensors from `first` on. Throws beyond Model::max_total_bytes.
void add_bytes(Model& model, std::size_t first);

}  // namespace stagehand::cli::model
