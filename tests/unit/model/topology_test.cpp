// The places of devices on the PCI bus, from folders as the system has them.
#include "topology.h"

#include <cstdlib>
#include <fstream>

#include <gtest/gtest.h>

namespace stagehand::cli {
namespace {

namespace fs = std::filesystem;

class Topology : public testing::Test {
protected:
    Topology() {
        std::string name = fs::temp_directory_path() / "topology.XXXXXX";
        root_ = mkdtemp(name.data());
        fs::create_directories(root_ / "bus");
    }
    ~Topology() override { fs::remove_all(root_); }

    // Two devices behind one switch, and one behind a port of its own.
    void add(const std::string& path, int node) {
        const fs::path folder = root_ / "devices" / path;
        fs::create_directories(folder);
        std::ofstream(folder / "numa_node") << node << "\n";
        fs::create_directory_symlink(folder, root_ / "bus" / folder.filename());
    }
    BusPlace find(const std::string& id) const { return find_bus_place(id, root_ / "bus"); }

    fs::path root_;
};

TEST_F(Topology, ADeviceHasTheBridgesOnItsWay) {
    add("pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0", 1);
    const BusPlace place = find("0000:17:00.0");
    EXPECT_EQ(place.bridges, (std::vector<std::string>{"0000:15:01.0", "0000:16:00.0"}));
    EXPECT_EQ(place.numa_node, 1);
}

TEST_F(Topology, DevicesBehindOneSwitchShareIt) {
    add("pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0", 0);
    add("pci0000:15/0000:15:01.0/0000:16:01.0/0000:18:00.0", 0);
    add("pci0000:15/0000:15:02.0/0000:19:00.0", -1);
    EXPECT_EQ(shared_bridge(find("0000:17:00.0"), find("0000:18:00.0")), "0000:15:01.0");
    EXPECT_EQ(shared_bridge(find("0000:17:00.0"), find("0000:19:00.0")), "");
    EXPECT_FALSE(find("0000:19:00.0").numa_node);
}

TEST_F(Topology, AnUnknownDeviceIsNowhere) {
    EXPECT_TRUE(find("0000:ff:00.0").bridges.empty());
    EXPECT_TRUE(find("").bridges.empty());
    EXPECT_FALSE(find("").numa_node);
}

}  // namespace
}  // namespace stagehand::cli
