// Topology: where devices sit on the system's PCI bus, as /sys tells it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace stagehand::cli {

struct BusPlace {
    std::vector<std::string> bridges;  // addresses on the way to the device: the first one is the host's port
    std::optional<int> numa_node;
};

// Empty if the system does not know the address.
BusPlace find_bus_place(const std::string& bus_id, const std::filesystem::path& devices = "/sys/bus/pci/devices");

// The last bridge that both devices are behind, so that they share its link to the host. Empty: there is none.
std::string shared_bridge(const BusPlace& one, const BusPlace& other);

}  // namespace stagehand::cli
