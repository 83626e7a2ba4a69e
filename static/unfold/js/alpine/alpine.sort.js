// In place of the theme's sorting by dragging: no list of the administration has an order of its own.
