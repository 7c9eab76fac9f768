// Charts as SVG pictures: a title, two axes from 0, a legend, and what is drawn over them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace stagehand::cli {

struct Point {
    double x = 0;
    double y = 0;
};

// A line of the legend.
struct ChartEntry {
    std::string_view style_class;
    std::string name;
};

// Elements are painted in the order of the calls. Classes of the style sheet determine their appearance. Points are
// places on the picture, which at() gives for values on the axes.
class Chart {
public:
    static constexpr double width = 880, left = 84, right = 36, top = 104;

    // The axes end at the values of `ends`. `bottom` is the room for texts below the chart. `style` adds to the style
    // of the title, the axes and the legend, and `dark_style` where the reader prefers dark pages. A screen reader
    // reads `description`.
    Chart(double height, double bottom, Point ends, std::string_view style, std::string_view dark_style,
          const std::string& description, const std::string& title, const std::string& subtitle);

    double x(double value) const { return left + (width - left - right) * value / ends_.x; }
    double y(double value) const { return base() - (base() - top) * value / ends_.y; }
    Point at(Point value) const { return {x(value.x), y(value.y)}; }
    double base() const { return height_ - bottom_; }  // the height of the horizontal axis

    // A line across the chart at a value of the vertical axis, and its text beside the axis.
    void row(double value, std::string_view text);
    void level(double value, std::string_view style_class) {
        line({left, y(value)}, {width - right, y(value)}, style_class);
    }
    void legend(const std::vector<ChartEntry>& entries);

    void line(Point from, Point to, std::string_view style_class);
    // "polyline" or "polygon".
    void shape(std::string_view kind, const std::vector<Point>& points, std::string_view style_class);
    void rectangle(Point corner, double wide, double high, std::string_view style_class);
    // `tip` is shown while the pointer rests on the circle.
    void circle(Point centre, double radius, std::string_view style_class, std::string_view tip = {});
    void text(Point at, std::string_view style_class, std::string_view content);

    // The whole file.
    std::string finish() const { return body_ + "</svg>\n"; }

private:
    const double height_, bottom_;
    const Point ends_;
    std::string body_;
};

// `text` between tags and in attributes of HTML or XML, which allow no control characters but white space.
std::string markup(std::string_view text);

}  // namespace stagehand::cli
