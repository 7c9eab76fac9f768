// Draws the curve of time against budget as an SVG picture.
#include "curve.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "chart.h"
#include "model/quantity.h"
#include "units.h"

namespace stagehand::cli {

namespace {

constexpr std::string_view curve_style = R"(.none { fill: #f1f3f5; }
.name-x, .name-y { fill: #1f2430; font-size: 13px; }
.mark, .mark-end { fill: #1f2430; font-size: 13px; font-weight: 600; }
.share, .none-text { fill: #6b7280; font-size: 11px; }
.share, .name-x, .none-text { text-anchor: middle; }
.mark-end { text-anchor: end; }
.plan { fill: none; stroke: #2563eb; stroke-width: 2.5; stroke-linejoin: round; stroke-linecap: round; }
.bound { fill: none; stroke: #d97706; stroke-width: 2; stroke-dasharray: 7 5; }
.compute { fill: none; stroke: #059669; stroke-width: 2; stroke-dasharray: 2 5; stroke-linecap: round; }
.all { fill: none; stroke: #6b7280; stroke-width: 1.5; stroke-dasharray: 2 5; stroke-linecap: round; }
.gap { fill: #2563eb; opacity: 0.09; }
.dot { fill: #2563eb; stroke: #ffffff; stroke-width: 1.2; }
.chosen { fill: #ffffff; stroke: #2563eb; stroke-width: 3; }
.drop { stroke: #2563eb; stroke-width: 1; stroke-dasharray: 3 3; }
)";
constexpr std::string_view curve_dark_style = R"(
  .none { fill: #1c2129; }
  .name-x, .name-y, .mark, .mark-end { fill: #e8eaed; }
  .share, .none-text { fill: #9aa3b2; }
  .all { stroke: #9aa3b2; }
  .plan, .drop { stroke: #7aa8ff; }
  .bound { stroke: #f5b04c; }
  .compute { stroke: #4ade9f; }
  .gap, .dot { fill: #7aa8ff; }
  .dot { stroke: #14171d; }
  .chosen { fill: #14171d; stroke: #7aa8ff; }
)";

// The step of an axis: 1, 2 or 5 times a power of ten, so that about `count` steps make `range`.
double tick_step(double range, int count) {
    const double raw = range / count;
    const double power = std::pow(10, std::floor(std::log10(raw)));
    for (const double factor : {1.0, 2.0, 5.0})
        if (raw <= factor * power) return factor * power;
    return 10 * power;
}

struct Unit {
    double size;
    std::string_view name;
};

// The unit in which most numbers of the axis are small.
Unit unit_for(double largest, double base, std::array<std::string_view, 5> names) {
    Unit unit = {1, names[0]};
    for (std::size_t i = 1; i < names.size() && largest / unit.size >= 2 * base; ++i)
        unit = {unit.size * base, names[i]};
    return unit;
}

// Where the axes end: bytes and milliseconds.
Point ends_of(const Curve& curve) {
    double budget = static_cast<double>(curve.model_bytes);
    double time = std::max({curve.copy_all_ms, curve.compute_ms, curve.chosen.step_ms});
    for (const CurvePoint& point : curve.points) {
        budget = std::max(budget, static_cast<double>(point.budget_bytes));
        time = std::max(time, point.step_ms);
    }
    return {std::max(budget, 1.0), std::max(time * 1.08, 1e-6)};
}

void draw_axes(Chart& chart, const Curve& curve, Point ends) {
    const Unit bytes = unit_for(ends.x, 1024, {"B", "KiB", "MiB", "GiB", "TiB"});
    const Unit time = unit_for(ends.y * 1e6, 1000, {"ns", "µs", "ms", "s", "ks"});
    const double base = chart.base();
    const double time_step = tick_step(ends.y * 1e6 / time.size, 6);
    for (double tick = 0; tick * time.size / 1e6 <= ends.y; tick += time_step)
        chart.row(tick * time.size / 1e6, fmt::format("{:.4g}", tick));
    const double budget_step = tick_step(ends.x / bytes.size, 9);
    const auto model = static_cast<double>(curve.model_bytes);
    for (double tick = 0; tick * bytes.size <= ends.x; tick += budget_step) {
        const double x = chart.x(tick * bytes.size);
        chart.line({x, base}, {x, base + 5}, "axis");
        chart.text({x, base + 21}, "tick", fmt::format("{:.4g}", tick));
        if (tick > 0 && model > 0)
            chart.text({x, base + 36}, "share", fmt::format("{:.0f} %", 100 * tick * bytes.size / model));
    }
    chart.text({(Chart::left + Chart::width - Chart::right) / 2, base + 62}, "name-x",
               fmt::format("device memory for weights, {} and share of the model", bytes.name));
    chart.text({20, Chart::top - 18}, "name-y", fmt::format("time of a step, {}", time.name));
}

void draw_lines(Chart& chart, const Curve& curve) {
    std::vector<ChartEntry> entries = {{"plan", "plan"}, {"bound", "max(compute, (W − M) / link)"}};
    if (curve.compute_ms > 0) entries.push_back({"compute", "compute"});
    entries.push_back({"all", "all of W copied"});
    chart.legend(entries);
    chart.level(curve.copy_all_ms, "all");
    if (curve.compute_ms > 0) chart.level(curve.compute_ms, "compute");
    std::vector<Point> plan, bound;
    for (const CurvePoint& point : curve.points) {
        const auto budget = static_cast<double>(point.budget_bytes);
        plan.push_back(chart.at({budget, point.step_ms}));
        bound.push_back(chart.at({budget, point.bound_ms}));
    }
    // The area between the plan and the bound.
    std::vector<Point> gap = plan;
    gap.insert(gap.end(), bound.rbegin(), bound.rend());
    chart.shape("polygon", gap, "gap");
    chart.shape("polyline", bound, "bound");
    chart.shape("polyline", plan, "plan");
    for (std::size_t i = 0; i < plan.size(); ++i) {
        const CurvePoint& point = curve.points[i];
        chart.circle(plan[i], 3.2, "dot",
                     fmt::format("{}: {} a step, {} copied", model::format_bytes(point.budget_bytes),
                                 time_text(point.step_ms), model::format_bytes(point.bytes_per_step)));
    }
}

void draw_chosen(Chart& chart, const CurvePoint& chosen) {
    const Point at = chart.at({static_cast<double>(chosen.budget_bytes), chosen.step_ms});
    chart.line(at, {at.x, chart.base()}, "drop");
    chart.circle(at, 6, "chosen");
    // The label is above the point and to its right, where a falling curve leaves room; near the edge it is to the
    // left.
    const bool end = at.x > Chart::width - Chart::right - 220;
    chart.text({at.x + (end ? -10 : 12), std::max(at.y - 12, Chart::top + 12)}, end ? "mark-end" : "mark",
               fmt::format("{} at {}", time_text(chosen.step_ms), model::format_bytes(chosen.budget_bytes)));
}

}  // namespace

std::string curve_picture(const Curve& curve) {
    const Point ends = ends_of(curve);
    Chart chart(540, 92, ends, curve_style, curve_dark_style,
                fmt::format("{}: time of a step against device memory", curve.title), curve.title, curve.subtitle);
    const double smallest = chart.x(static_cast<double>(curve.smallest_budget_bytes));
    chart.rectangle({Chart::left, Chart::top}, smallest - Chart::left, chart.base() - Chart::top, "none");
    draw_axes(chart, curve, ends);
    if (smallest - Chart::left > 56)
        chart.text({(Chart::left + smallest) / 2, chart.base() - 10}, "none-text", "no plan");
    draw_lines(chart, curve);
    draw_chosen(chart, curve.chosen);
    return chart.finish();
}

}  // namespace stagehand::cli
