"""Hostile programs against provider `local`, as whoever runs the tests: root, or an ordinary user."""
