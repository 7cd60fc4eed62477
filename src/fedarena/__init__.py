"""fedarena: which federated-learning algorithm suits your federation?"""
__version__ = "0.1.0"
