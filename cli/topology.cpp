#include "topology.h"

#include <algorithm>
#include <fstream>
#include <system_error>

namespace stagehand::cli {
namespace {

// "0000:17:00.0", and not "pci0000:17", which is the bus of a port.
bool is_address(const std::string& part) {
    return std::count(part.begin(), part.end(), ':') == 2 && part.find('.') != std::string::npos;
}

}  // namespace

BusPlace find_bus_place(const std::string& bus_id, const std::filesystem::path& devices) {
    BusPlace place;
    std::error_code error;
    // The folder of a device lies in that of its bridge.
    const std::filesystem::path folder = std::filesystem::canonical(devices / bus_id, error);
    if (bus_id.empty() || error) return place;
    for (const std::filesystem::path& part : folder.parent_path())
        if (is_address(part.string())) place.bridges.push_back(part.string());
    int node = -1;
    if (std::ifstream(folder / "numa_node") >> node && node >= 0) place.numa_node = node;
    return place;
}

std::string shared_bridge(const BusPlace& one, const BusPlace& other) {
    const auto [first, second] =
        std::mismatch(one.bridges.begin(), one.bridges.end(), other.bridges.begin(), other.bridges.end());
    return first == one.bridges.begin() ? "" : *std::prev(first);
}

}  // namespace stagehand::cli
