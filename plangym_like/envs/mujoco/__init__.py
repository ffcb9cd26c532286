"""Gymnasium's MuJoCo robots, and what other environments in MuJoCo share with them."""
