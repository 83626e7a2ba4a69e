// In place of the theme's charts: the administration has none.
