// The files that `pack` and `unpack` read, and those that they write: one file, or all shards of a model.
#pragma once

#include <string>
#include <vector>

namespace stagehand::cli {

struct Shard {
    std::string from, to;
};

class Shards {
public:
    // The shards of a model keep their names in the folder `output`. Throws ModelError, and CommandError if `output` is
    // the folder of the model.
    Shards(const std::string& model, const std::string& output);

    const std::vector<Shard>& files() const { return files_; }

    // Makes the folders. A shard index in the output goes, so that the folder is no model until finish().
    void begin() const;
    // Copies the shard index, when all shards are written.
    void finish() const;

private:
    std::vector<Shard> files_;
    Shard index_;  // empty if there is one file
};

}  // namespace stagehand::cli
