// Division: the commands of one call, divided among the own link and relays.
#pragma once

#include <cstdint>
#include <vector>

#include "transfer/carrier/deal.h"
#include "transfer/route/command.h"

namespace stagehand::transfer {

// Keeps its capacity, so that a steady state allocates nothing.
class Division {
public:
    struct Part {
        size_t way = 0;
        Command command;
    };

    // Begins anew, for the own link and so many ways.
    void begin(size_t ways);
    // The command stays whole.
    void add(const Command& command);
    // The speeds of the links are set for the command, which is divided among them: shares are multiples of `grain`,
    // and a way gets nothing rather than less than `least` bytes.
    std::vector<DealtLink>& links() { return links_; }  // the own one, then the ways
    void divide(const Command& command, uint64_t grain, uint64_t least);

    const std::vector<Command>& own() const { return own_; }
    const std::vector<Part>& parts() const { return parts_; }

private:
    std::vector<DealtLink> links_;
    std::vector<Command> own_;
    std::vector<Part> parts_;
    bool is_cut_ = false;  // the last command was divided
};

}  // namespace stagehand::transfer
