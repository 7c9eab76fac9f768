// The descriptors of a block's parts. Each part becomes a block of its own.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <stagehand/runtime.h>

#include "policy/cuts.h"

namespace stagehand::core {

class BlockParts {
public:
    // The descriptor of the divided block was checked. Its segments must live as long as the parts.
    BlockParts(const sh_block_desc& block, std::span<const policy::Cut> cuts);

    std::span<const sh_block_desc> descs() const { return descs_; }

private:
    std::vector<sh_block_desc> descs_;
    std::vector<std::vector<sh_segment>> segments_;
    std::vector<std::string> names_;
};

}  // namespace stagehand::core
