// make_room_for_one: makes the next push_back() of a vector one that cannot fail, at the cost of a push_back().
#pragma once

#include <algorithm>
#include <vector>

namespace stagehand::core {

template <class Element>
void make_room_for_one(std::vector<Element>& vector) {
    if (vector.size() == vector.capacity()) vector.reserve(std::max<size_t>(8, 2 * vector.size()));
}

}  // namespace stagehand::core
