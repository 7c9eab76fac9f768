#include "engine.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "access_order.h"
#if STAGEHAND_HAVE_HELPERS
#include "core/helpers/helpers.h"
#endif

namespace stagehand::test {
namespace {

void demand(const char* what, sh_status status) {
    if (status != SH_OK) throw std::runtime_error(std::string(what) + ": " + why());
}

}  // namespace

std::string why() {
    std::string text(sh_last_error(nullptr, 0), 0);
    text.resize(sh_last_error(text.data(), text.size() + 1));
    return text;
}

bool has_helpers() { return STAGEHAND_HAVE_HELPERS; }

void hurry_helpers() {
#if STAGEHAND_HAVE_HELPERS
    core::Helpers::set_quiet_ns(0);
#endif
}

testing::AssertionResult is_refused(sh_status found, sh_status wanted, const std::string& text) {
    if (found == wanted && why().find(text) != std::string::npos) return testing::AssertionSuccess();
    return testing::AssertionFailure() << sh_status_string(found) << " instead of " << sh_status_string(wanted)
                                       << ", and not \"" << text << "\", but: " << why();
}

TestDevice::TestDevice(const DeviceSettings& settings) {
    const bool no_pages = !settings.map_pages || (devices_without_pages() && settings.name != "sim");
    std::string backend_options = settings.name == device_under_test() && !on_host_backend() ? "" : settings.options;
    if (no_pages) backend_options += backend_options.empty() ? "map_pages=0" : ";map_pages=0";
    std::string name = settings.name;
    ordered_ = through_order(&name, &backend_options);
    sh_device_options options = SH_DEVICE_OPTIONS_INIT;
    options.budget_bytes = settings.budget_bytes;
    options.page_bytes = settings.page_bytes;
    options.link_bytes_per_second = settings.link_bytes_per_second;
    sh_host_options host = SH_HOST_OPTIONS_INIT;
    host.staging_bytes = settings.staging_bytes;
    host.staging_threads = settings.staging_threads;
    options.host = &host;
    options.backend_options = backend_options.c_str();
    sh_helper_options helpers = SH_HELPER_OPTIONS_INIT;
    helpers.devices = settings.helpers.c_str();
    helpers.flags = settings.helps ? SH_HELPS_OTHERS : 0;
    options.helpers = &helpers;
    if (sh_device_open(name.c_str(), &options, &device_) != SH_OK) throw std::runtime_error("device: " + why());
    if (ordered_) watch_order(device_);
    bytes_ = std::make_unique<DeviceBytes>(device_);
}

TestDevice::~TestDevice() {
    for (const sh_stream stream : streams_) sh_stream_destroy(device_, stream);
    if (ordered_) forget_order(device_);
    sh_device_close(device_);
    if (ordered_) expect_order();
}

sh_stream TestDevice::stream() {
    sh_stream stream = 0;
    if (sh_stream_create(device_, &stream) != SH_OK) throw std::runtime_error("stream: " + why());
    streams_.push_back(stream);
    return stream;
}

sh_memory_info TestDevice::memory() const {
    auto info = sh_sized<sh_memory_info>();
    EXPECT_SUCCEEDS(sh_device_get_memory(device_, &info));
    return info;
}

void TestDevice::synchronize() {
    for (const sh_stream stream : streams_) {
        sh_status status = SH_OK;
        for (int attempt = 0; attempt < 3 && (status = sh_stream_synchronize(device_, stream)) != SH_OK; attempt++) {
        }  // failures may be injected
        EXPECT_EQ(status, SH_OK) << why();
    }
    bytes_->settle();
}

sh_block register_block(sh_runtime* runtime, const sh_segment& segment, uint32_t flags) {
    sh_block_desc desc = SH_BLOCK_DESC_INIT;
    desc.bytes = segment.offset + segment.bytes;
    desc.flags = flags;
    desc.segments = &segment;
    desc.segment_count = 1;
    sh_block block = 0;
    demand("register", sh_register_blocks(runtime, &desc, 1, &block));
    return block;
}

sh_view held_view(sh_runtime* runtime, sh_block block, sh_stream stream, uint32_t flags) {
    auto view = sh_sized<sh_view>();
    demand("acquire", sh_acquire(runtime, block, stream, flags, &view));
    return view;
}

void let_go(sh_runtime* runtime, sh_block block, sh_stream stream) {
    demand("release", sh_release(runtime, block, stream));
}

sh_runtime_options RuntimeSettings::options() const {
    sh_runtime_options options = SH_RUNTIME_OPTIONS_INIT;
    options.name = name;
    options.max_bytes = max_bytes;
    options.unordered_bytes = unordered_bytes;
    options.max_held = max_held;
    options.share_wait_ns = share_wait_ns;
    return options;
}

Model::Model(TestDevice& device, const std::vector<BlockSpec>& specs, const RuntimeSettings& settings)
    : device_(device) {
    const sh_runtime_options options = settings.options();
    if (sh_runtime_create(device.get(), &options, &runtime_) != SH_OK) throw std::runtime_error("runtime: " + why());
    try {
        register_all(specs);
    } catch (...) {
        destroy();
        throw;
    }
}

// Registers all blocks by one call, so that small blocks are packed.
void Model::register_all(const std::vector<BlockSpec>& specs) {
    std::vector<sh_segment> segments(specs.size());
    std::vector<sh_block_desc> descs(specs.size());
    for (size_t i = 0; i < specs.size(); i++) {
        specs_.push_back(specs[i]);
        truth_.push_back(std::make_shared<const std::vector<uint8_t>>(contents_of(i, 0, specs[i].bytes)));
        sources_.push_back(std::make_unique<Source>(device_.get(), specs[i].origin, *truth_[i]));
        segments[i] = sources_[i]->segment();
        descs[i] = SH_BLOCK_DESC_INIT;
        descs[i].flags = specs[i].flags;
        descs[i].bytes = specs[i].bytes;
        descs[i].segments = &segments[i];
        descs[i].segment_count = 1;
        descs[i].on_load = specs[i].on_load;
        descs[i].user_data = specs[i].user_data;
        descs[i].name = specs[i].name.empty() ? nullptr : specs[i].name.c_str();
    }
    ids_.resize(specs.size());
    if (!specs.empty() && sh_register_blocks(runtime_, descs.data(), descs.size(), ids_.data()) != SH_OK)
        throw std::runtime_error("blocks: " + why());
}

Model::~Model() {
    destroy();
    // Work that is still queued on the streams compares with the bytes of this model.
    device_.synchronize();
    EXPECT_EQ(wrong_, 0u) << first_wrong_;
}

void Model::destroy() {
    sh_runtime_destroy(runtime_);
    runtime_ = nullptr;
}

uint64_t Model::total_bytes() const {
    uint64_t sum = 0;
    for (const BlockSpec& spec : specs_) sum += spec.bytes;
    return sum;
}

sh_status Model::add(const BlockSpec& spec) {
    const size_t i = specs_.size();
    auto truth = std::make_shared<const std::vector<uint8_t>>(contents_of(i, 0, spec.bytes));
    auto source = std::make_unique<Source>(device_.get(), spec.origin, *truth);
    const sh_segment segment = source->segment();
    sh_block_desc desc = SH_BLOCK_DESC_INIT;
    desc.flags = spec.flags;
    desc.bytes = spec.bytes;
    desc.segments = &segment;
    desc.segment_count = 1;
    desc.on_load = spec.on_load;
    desc.user_data = spec.user_data;
    desc.name = spec.name.empty() ? nullptr : spec.name.c_str();
    sh_block id = 0;
    const sh_status status = sh_register_blocks(runtime_, &desc, 1, &id);
    if (status != SH_OK) return status;
    specs_.push_back(spec);
    truth_.push_back(std::move(truth));
    sources_.push_back(std::move(source));
    ids_.push_back(id);
    return SH_OK;
}

sh_status Model::remove(size_t i) {
    const sh_status status = sh_unregister_blocks(runtime_, &ids_[i], 1);
    if (status == SH_OK) sources_[i].reset();
    return status;
}

void Model::change(size_t i, uint64_t version) {
    std::vector<uint8_t> bytes = contents_of(i, version, specs_[i].bytes);
    sources_[i]->write(bytes);
    set_truth(i, std::move(bytes));
}

sh_status Model::schedule(const std::vector<size_t>& order, uint64_t compute_ns) {
    std::vector<sh_use> uses;
    for (const size_t i : order) {
        uses.push_back(SH_USE_INIT);
        uses.back().block = ids_[i];
        uses.back().compute_ns = compute_ns;
    }
    return sh_set_schedule(runtime_, uses.data(), uses.size());
}

void Model::note(size_t block, const uint8_t* at, const std::vector<uint8_t>& truth) {
    compared_++;
    if (std::memcmp(at, truth.data(), truth.size()) == 0) return;
    wrong_++;
    std::lock_guard lock(mutex_);
    if (!first_wrong_.empty()) return;
    const size_t byte = static_cast<size_t>(std::mismatch(truth.begin(), truth.end(), at).first - truth.begin());
    first_wrong_ = "block " + std::to_string(block) + " of " + std::to_string(truth.size()) +
                   " bytes differs from byte " + std::to_string(byte) + " on, at use " +
                   std::to_string(compared_.load());
}

sh_status Model::compare(size_t i, const sh_view& view, sh_stream stream, int64_t busy_ns) {
    if (view.bytes != specs_[i].bytes || view.block != ids_[i]) ADD_FAILURE() << "a view of another block";
    const auto look = [this, i, truth = truth_[i]](const uint8_t* at) { note(i, at, *truth); };
    return device_.bytes().look(stream, view.address, truth_[i]->size(), look, busy_ns);
}

sh_status Model::overwrite(size_t i, const sh_view& view, uint64_t version, sh_stream stream) {
    std::vector<uint8_t> bytes = contents_of(i, version, specs_[i].bytes);
    sh_status status = sh_mark_dirty(runtime_, ids_[i]);
    if (status != SH_OK) return status;
    status = device_.bytes().write(stream, view.address, bytes);
    if (status != SH_OK) return status;
    set_truth(i, std::move(bytes));
    return SH_OK;
}

sh_view Model::acquire(size_t i, sh_stream stream, uint32_t flags) {
    return held_view(runtime_, ids_[i], stream, flags);
}

void Model::release(size_t i, sh_stream stream) { let_go(runtime_, ids_[i], stream); }

void Model::begin_step() { demand("step_begin", sh_step_begin(runtime_, nullptr)); }

void Model::end_step() { demand("step_end", sh_step_end(runtime_)); }

void Model::invalidate(size_t i) { demand("invalidate", sh_invalidate_blocks(runtime_, &ids_[i], 1)); }

sh_scope* Model::keep_resident() {
    sh_scope* scope = nullptr;
    demand("keep_resident", sh_keep_resident(runtime_, &scope));
    return scope;
}

sh_scope* Model::begin_guest(const sh_guest_options& options) {
    sh_scope* scope = nullptr;
    demand("guest_begin", sh_guest_begin(runtime_, &options, &scope));
    return scope;
}

void Model::rewrite(size_t i, uint64_t version, sh_stream stream) {
    const sh_view view = acquire(i, stream);
    demand("compare", compare(i, view, stream));
    demand("overwrite", overwrite(i, view, version, stream));
    release(i, stream);
}

sh_status Model::use(size_t i, sh_stream stream, uint32_t flags, int64_t busy_ns) {
    auto view = sh_sized<sh_view>();
    const sh_status acquired = sh_acquire(runtime_, ids_[i], stream, flags, &view);
    if (acquired != SH_OK) return acquired;
    const sh_status compared = compare(i, view, stream, busy_ns);
    const sh_status released = sh_release(runtime_, ids_[i], stream);
    return compared != SH_OK ? compared : released;
}

sh_status Model::step(const std::vector<size_t>& order, sh_stream stream, int64_t busy_ns) {
    sh_status status = sh_step_begin(runtime_, nullptr);
    if (status != SH_OK) return status;
    for (const size_t i : order) {
        status = use(i, stream, 0, busy_ns);
        if (status != SH_OK) break;
    }
    const sh_status ended = sh_step_end(runtime_);
    return status != SH_OK ? status : ended;
}

sh_runtime_stats Model::stats() const {
    auto stats = sh_sized<sh_runtime_stats>();
    EXPECT_SUCCEEDS(sh_runtime_get_stats(runtime_, &stats));
    return stats;
}

sh_block_state Model::state(size_t i) const {
    auto state = sh_sized<sh_block_state>();
    EXPECT_SUCCEEDS(sh_block_get_state(runtime_, ids_[i], &state));
    return state;
}

sh_plan_info Model::plan(uint64_t dry_run_budget) {
    sh_plan_options options = SH_PLAN_OPTIONS_INIT;
    if (dry_run_budget) options = {sizeof options, SH_PLAN_DRY_RUN, dry_run_budget, 0};
    auto info = sh_sized<sh_plan_info>();
    EXPECT_SUCCEEDS(sh_plan(runtime_, &options, &info));
    return info;
}

SoloModel::SoloModel(const DeviceSettings& device, const std::vector<BlockSpec>& specs,
                     const std::vector<size_t>& order, const RuntimeSettings& settings)
    : OwnDevice{TestDevice(device)}, Model(own_device, specs, settings) {
    if (!order.empty()) demand("schedule", schedule(order));
}

std::vector<size_t> forward(size_t count) {
    std::vector<size_t> order(count);
    for (size_t i = 0; i < count; i++) order[i] = i;
    return order;
}

std::vector<size_t> forward_backward(size_t count) {
    std::vector<size_t> order = forward(count);
    for (size_t i = count; i-- > 0;) order.push_back(i);
    return order;
}

std::vector<BlockSpec> blocks_of(const std::vector<uint64_t>& bytes, Origin origin, uint32_t flags) {
    std::vector<BlockSpec> specs;
    for (const uint64_t count : bytes) specs.push_back({count, origin, flags});
    return specs;
}

std::vector<BlockSpec> equal_blocks(size_t count, uint64_t bytes, Origin origin, uint32_t flags) {
    return blocks_of(std::vector<uint64_t>(count, bytes), origin, flags);
}

std::vector<BlockSpec> unequal_blocks(size_t count, Origin origin) {
    const uint64_t sizes[] = {1,   5 * kPage + 17, 300,           3 * kPage, 8 * kPage - 1, 2 * kPage,
                              100, kPage - 1,      6 * kPage + 1, kPage + 1};
    std::vector<uint64_t> bytes;
    for (size_t i = 0; i < count; i++) bytes.push_back(sizes[i % std::size(sizes)]);
    return blocks_of(bytes, origin);
}

}  // namespace stagehand::test
