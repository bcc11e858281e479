"""Table 1 of the FedSteer paper on Flower."""
